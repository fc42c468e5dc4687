"""What `export` writes, sglang-omni 0.1.9's own loader reads, and its own planner finds the same sums per GPU.

Needs sglang-omni, which needs torch; without it the tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.catalogue import Variant, pipelines
from omni_operator.importing import Imported, ImportProblem, NoteKind, NoteReason, export, import_file, slot_sums
from omni_operator.importing.export import ENGINE_FIRST
from omni_operator.planning.layout import Layout
from omni_operator.planning.resolve import resolve

pytest.importorskip("sglang_omni", reason="sglang-omni is not installed")
pytest.importorskip("transformers", reason="sglang-omni's loader needs transformers, of the stage environment")

DATA = Path(__file__).parents[1] / "importing" / "data"
TOLERANCE = Fraction(1, 10**9)
"""Upstream adds floats."""


def upstream_sums(text: str, folder: Path) -> dict[int, tuple[float, int]]:
    """Share and bytes by GPU, as 0.1.9 reads a file: loaded, resolved, replicas expanded, planned and checked."""
    from sglang_omni.config.manager import ConfigManager
    from sglang_omni.pipeline.runtime_config import prepare_pipeline_runtime

    file = folder / "exported.yaml"
    file.write_text(text, encoding="utf-8")
    config = ConfigManager.from_file(str(file)).config
    prepared = prepare_pipeline_runtime(config)
    try:
        gpus = prepared.placement_plan.gpus
        return {gpu: (plan.total_gpu_memory_fraction, plan.total_reserve_bytes) for gpu, plan in gpus.items()}
    finally:
        prepared.runtime_dir.close()


def agrees(layout: Layout, upstream: dict[int, tuple[float, int]]) -> bool:
    """Shares and amounts together, on the planned card: some classes take shares only."""
    assert layout.card is not None
    card = layout.card.memory
    ours = {slot: one.share + Fraction(one.amount, card) for slot, one in slot_sums(layout).items()}
    theirs = {gpu: Fraction(share) + Fraction(amount, card) for gpu, (share, amount) in upstream.items()}
    return ours.keys() == theirs.keys() and all(abs(ours[slot] - theirs[slot]) < TOLERANCE for slot in ours)


def variants() -> Iterator[tuple[str, Variant]]:
    for pipeline in pipelines().values():
        if pipeline.architectures:
            for variant in pipeline.variants.values():
                yield pipeline.name, variant


def spec_of(pipeline: str, variant: Variant, stages: list[dict[str, Any]]) -> OmniModelSpec:
    return OmniModelSpec.model_validate(
        {
            "engine": "sglang-omni",
            "model": {"id": "org/model", "pipeline": pipeline, "variant": variant.name, "cache": {"emptyDir": {}}},
            "gpus": {"card": "h100-80gb"},
            "stages": stages,
        }
    )


def with_budgets(variant: Variant, spelling: str) -> list[dict[str, Any]]:
    """A budget for every stage on a GPU, in one spelling, small enough to fit."""
    on_gpu = [stage for stage in variant.stages if stage.slots]
    each = {"share": "7.25%", "amount": "3Gi"}[spelling]
    return [{"name": stage.name, "gpuMemory": each} for stage in on_gpu]


@pytest.mark.parametrize("spelling", ["share", "amount"])
@pytest.mark.parametrize(("pipeline", "variant"), [pytest.param(p, v, id=f"{p}-{v.name}") for p, v in variants()])
def test_every_pipeline_with_budgets_is_read_by_upstream(
    pipeline: str, variant: Variant, spelling: str, tmp_path: Path
) -> None:
    spec = spec_of(pipeline, variant, with_budgets(variant, spelling))
    layout = resolve(spec).layout
    assert layout is not None
    assert agrees(layout, upstream_sums(export(spec, name="exported").yaml(), tmp_path))


def test_everything_that_a_stage_can_say_arrives(tmp_path: Path) -> None:
    from sglang_omni.config.manager import ConfigManager

    variant = pipelines()["qwen3_omni"].variants["speech"]
    spec = spec_of(
        "qwen3_omni",
        variant,
        [
            {"name": "image_encoder", "gpuMemory": "2%"},
            {"name": "audio_encoder", "gpuMemory": "1600Mi"},
            {"name": "thinker", "gpus": [0, 1], "gpuMemory": "70%", "kvCache": "6Gi",
             "engineArgs": {"max_running_requests": 16, "encoder_mem_reserve": 0.045},
             "env": [{"name": "A", "value": "1"}]},
            {"name": "talker_ar", "gpus": [2], "gpuMemory": "33.5%"},
            {"name": "code2wav", "gpus": [2], "gpuMemory": "5%"},
        ],
    )  # fmt: skip
    text = export(spec, name="all").yaml()
    layout = resolve(spec).layout
    assert layout is not None
    assert agrees(layout, upstream_sums(text, tmp_path))
    config = ConfigManager.from_file(str(tmp_path / "exported.yaml")).config
    thinker = config.stage_named("thinker")
    assert (thinker.gpu, thinker.tp_size, thinker.engine.kv_cache_bytes) == ([0, 1], 2, 6 * 2**30)
    assert thinker.engine.max_running_requests == 16
    assert thinker.factory.encoder_mem_reserve == 0.045
    assert thinker.env == {"A": "1"}
    assert config.stage_named("talker_ar").gpu == 2


def read_or_none(file: Path) -> Imported | None:
    try:
        return import_file(file, card="h200")
    except ImportProblem:
        return None


FILES = {file: read_or_none(file) for file in sorted((DATA / "sglang-omni").rglob("*.yaml"))}
WITHOUT_QUESTIONS = [file for file, one in FILES.items() if one is not None and not one.questions]
"""A missing budget has no verdict upstream either."""


@pytest.mark.parametrize("file", WITHOUT_QUESTIONS, ids=lambda file: file.name)
def test_files_of_every_form_come_back_in_the_form_of_today(file: Path, tmp_path: Path) -> None:
    """Also those with copies of stages, which only the layout has."""
    imported = FILES[file]
    assert imported is not None
    spec = OmniModelSpec.model_validate(imported.manifest["spec"])
    exported = export(spec, name="again", layout=imported.layout)
    assert agrees(imported.layout, upstream_sums(exported.yaml(), tmp_path))


@pytest.mark.parametrize("file", [file for file, one in FILES.items() if one is not None], ids=lambda file: file.name)
def test_upstream_refuses_what_the_notes_say_it_refuses_and_nothing_else(file: Path) -> None:
    from sglang_omni.config.manager import ConfigManager

    imported = FILES[file]
    assert imported is not None
    said = {note.kind for note in imported.notes} & {NoteKind.REFUSED_UPSTREAM}
    unknown = any(note.reason is NoteReason.PIPELINE_UNKNOWN for note in imported.notes)
    if said or unknown:
        with pytest.raises((ValueError, KeyError)):
            ConfigManager.from_file(str(file))
    else:
        ConfigManager.from_file(str(file))


@pytest.mark.parametrize("file", WITHOUT_QUESTIONS, ids=lambda file: file.name)
def test_the_importer_and_upstream_read_the_same_sums(file: Path, tmp_path: Path) -> None:
    imported = FILES[file]
    assert imported is not None
    if not any(note.kind is NoteKind.REFUSED_UPSTREAM for note in imported.notes):
        assert agrees(imported.layout, upstream_sums(file.read_text(), tmp_path))


def test_arguments_that_engine_and_factory_both_take_are_the_engines() -> None:
    """As the stage container tells them apart."""
    server = pytest.importorskip("sglang.srt.server_args", reason="SGLang is of the stage environment").ServerArgs
    from sglang_omni.config import EngineArgs

    of_engine = {*server.__struct_fields__, *EngineArgs.model_fields}
    taken = {name for _, v in variants() for stage in v.stages if stage.engine for name in stage.arguments}
    assert taken & of_engine == ENGINE_FIRST
