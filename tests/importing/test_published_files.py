"""Every published file imports with the sums of the table, or is refused with a reason."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.importing import Imported, ImportProblem, NoteKind, NoteReason, import_file, slot_sums
from omni_operator.planning.budget import check
from omni_operator.planning.layout import Layout
from omni_operator.planning.resolve import resolve

HERE = Path(__file__).parent
DATA = HERE / "data"
EXPECTED: dict[str, Any] = yaml.safe_load((HERE / "expected.yaml").read_text())
IMPORTED = [name for name, row in EXPECTED.items() if "refused" not in row]
SGLANG = [name for name in IMPORTED if name.startswith("sglang-omni")]
VLLM = [name for name in IMPORTED if name.startswith("vllm-omni")]


def imported(name: str, **answers: Any) -> Imported:
    return import_file(DATA / name, **answers)


def table(layout: Layout) -> dict[str, Any]:
    sums = slot_sums(layout)
    row: dict[str, Any] = {"sums": {slot: one.share for slot, one in sums.items()}}
    row["bytes"] = {slot: one.amount for slot, one in sums.items() if one.amount}
    row["open"] = {slot: len(one.without_budget) for slot, one in sums.items() if one.without_budget}
    return row


def wanted(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "sums": {slot: Fraction(text) for slot, text in row["sums"].items()},
        "bytes": row.get("bytes", {}),
        "open": row.get("open", {}),
    }


def test_the_table_names_every_file() -> None:
    files = {str(file.relative_to(DATA)) for file in DATA.rglob("*") if file.suffix in (".yaml", ".json")}
    assert files == EXPECTED.keys()


@pytest.mark.parametrize("name", IMPORTED)
def test_sums_per_gpu_are_those_of_the_table(name: str) -> None:
    row, result = EXPECTED[name], imported(name)
    assert result.form.value == row["form"]
    assert table(result.layout) == wanted(row)
    others = {platform: table(layout) for platform, layout in result.platforms.items() if platform != "cuda"}
    assert others == {platform: wanted(one) for platform, one in row.get("platforms", {}).items()}


@pytest.mark.parametrize("name", [name for name, row in EXPECTED.items() if "refused" in row])
def test_other_files_are_refused_with_what_they_look_like(name: str) -> None:
    with pytest.raises(ImportProblem) as refusal:
        imported(name)
    assert EXPECTED[name]["refused"] in refusal.value.message
    assert str(refusal.value).startswith(str(DATA / name))


@pytest.mark.parametrize("name", SGLANG)
def test_missing_budgets_are_asked_by_the_field_to_set(name: str) -> None:
    reasons = (NoteReason.BUDGET_MISSING, NoteReason.BUDGET_UNKNOWN)
    asked = {note.field for note in imported(name).questions if note.reason in reasons}
    assert asked == {f"spec.stages[name={stage}].gpuMemory" for stage in EXPECTED[name].get("asks", [])}


@pytest.mark.parametrize("name", IMPORTED)
def test_a_manifest_without_questions_is_valid_and_means_its_layout(name: str) -> None:
    result = imported(name, card="h200", model="org/model")
    if result.questions and any(note.field.startswith("spec.model") for note in result.questions):
        return
    spec = OmniModelSpec.model_validate(result.manifest["spec"])
    layout = resolve(spec).layout
    assert layout is not None
    if result.questions or any(note.reason is NoteReason.STAGE_COPIES for note in result.notes):
        return
    assert table(layout) == table(result.layout)
    assert not any(problem.severity == "error" for problem in check(layout)) or table(layout)["sums"][0] > 1


@pytest.mark.parametrize("name", VLLM)
def test_the_verdict_of_vllm_files_comes_from_the_same_rules(name: str) -> None:
    """The layout is what the rules take, also where the catalogue has no such pipeline."""
    layout = imported(name, card="h200").layout
    over = any(one.share > 1 for one in slot_sums(layout).values())
    assert over == any(problem.reason == "BudgetExceeded" for problem in check(layout))


def test_old_and_new_spelling_give_one_omnimodel(tmp_path: Path) -> None:
    old = imported("sglang-omni/jun2026/qwen3_omni_colocated_h20.yaml")
    new = tmp_path / "new.yaml"
    new.write_text(
        """
config_cls: Qwen3OmniSpeechColocatedPipelineConfig
name: qwen3-omni-colocated-h20
model_path: Qwen/Qwen3-Omni-30B-A3B-Instruct
stages:
  image_encoder: {gpu_memory_fraction: 0.025}
  audio_encoder: {gpu_memory_fraction: 0.025}
  thinker: {gpu_memory_fraction: 0.75}
  talker_ar: {gpu_memory_fraction: 0.12}
  code2wav: {gpu_memory_fraction: 0.02}
"""
    )
    fresh = import_file(new)
    assert fresh.manifest == old.manifest
    assert fresh.layout == old.layout
    assert [note.version for note in old.notes if note.kind is NoteKind.REFUSED_UPSTREAM] == ["0.1.9", "0.1.9"]
    assert not [note for note in fresh.notes if note.kind is NoteKind.REFUSED_UPSTREAM]
