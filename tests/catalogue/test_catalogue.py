"""The catalogue's data: complete, consistent, and as upstream has it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from omni_operator.api.quantities import MIB, Share
from omni_operator.catalogue import (
    cards,
    cards_without_memory,
    known_models,
    layouts_for,
    model_sizes,
    pipelines,
    tried_layouts,
)

ROOT = Path(__file__).parents[2]
UPSTREAM = {name: found for name, found in pipelines().items() if found.source.startswith("sglang-omni")}


def test_all_pipelines_of_the_pinned_package_are_there() -> None:
    assert len(UPSTREAM) == 31
    assert sum(len(found.variants) for found in UPSTREAM.values()) == 49
    assert {found.source for found in UPSTREAM.values()} == {"sglang-omni 0.1.9"}


@pytest.mark.parametrize("name", pipelines())
def test_edges_lead_to_stages_of_the_variant(name: str) -> None:
    pipeline = pipelines()[name]
    assert pipeline.default_variant in pipeline.variants
    for variant in pipeline.variants.values():
        stages = {stage.name: stage for stage in variant.stages}
        assert len(stages) == len(variant.stages)
        for stage in variant.stages:
            assert {*stage.next, *stage.stream_to} <= set(stages)
            assert stage.slots or stage.budget is None
        for first, second in variant.process_local_edges:
            assert stages[first].process == stages[second].process
        for first, second in variant.apart:
            assert not set(stages[first].slots) & set(stages[second].slots)


def test_qwen3_omni_keeps_its_thinker_and_talker_as_upstream_does() -> None:
    variants = pipelines()["qwen3_omni"].variants
    assert variants["speech"].apart == (("thinker", "talker_ar"),)
    assert not variants["speech"].one_gpu
    assert variants["speech-colocated"].one_gpu
    assert variants["speech-colocated"].apart == ()


def test_layouts_that_worked_give_no_card_away_twice() -> None:
    for layout in tried_layouts().values():
        shares = [stage.budget.value for stage in layout.stages if isinstance(stage.budget, Share)]
        if layout.works and layout.gpus == 1:
            assert sum(shares) * layout.copies <= 1, layout.name


def test_every_kind_of_card_that_people_ask_for_has_a_layout() -> None:
    worked = {layout.card for layout in tried_layouts().values() if layout.works}
    assert {"h100-80gb", "h20", "h200", "a100-80gb", "l40s", "rtx-4090", "gb10"} <= worked


def test_most_pipelines_have_a_known_model() -> None:
    assert len({known.pipeline for known in known_models().values()}) >= 25


def test_known_models_have_a_pipeline() -> None:
    for known in known_models().values():
        pipeline = pipelines()[known.pipeline]
        assert known.variant is None or known.variant in pipeline.variants


def test_sizes_name_stages_of_their_models_pipeline() -> None:
    for id, size in model_sizes().items():
        assert size.source
        pipeline = pipelines()[known_models()[id].pipeline]
        stages = {stage.name for variant in pipeline.variants.values() for stage in variant.stages}
        assert set(size.stages) <= stages
        assert {part for parts in size.stages.values() for part in parts} == set(size.components)


def test_tried_layouts_are_of_known_stages_and_cards() -> None:
    for layout in tried_layouts().values():
        assert layout.pipeline or layout.engine == "vllm-omni"
        if layout.pipeline:
            variant = pipelines()[layout.pipeline].variants[layout.variant]
            slots = {stage.name: stage.slots for stage in variant.stages}
            assert all(slots[stage.name] for stage in layout.stages), layout.name
        assert layout.card in cards() or layout.card in cards_without_memory()
        assert layout.source


def test_a_models_layouts_are_found_by_card_and_those_that_failed_are_not_offered() -> None:
    names = {layout.name for layout in layouts_for("qwen/qwen3-omni-30b-a3b-instruct", "h100-80gb")}
    assert "qwen3-omni-h100-bf16-speech-synthesis" in names
    assert not layouts_for("OpenMOSS-Team/MOSS-TTS-v1.5", "rtx-4090")


def test_a_card_sold_as_80_gb_has_less() -> None:
    assert cards()["h100-80gb"].memory == 81559 * MIB < 80 * 1024 * MIB
    assert list(cards().values()) == sorted(cards().values(), key=lambda card: (card.memory, card.name))


def test_a_card_without_a_memory_figure_has_neither_zero_nor_endless_memory() -> None:
    assert "gb10" in cards_without_memory()
    assert "gb10" not in cards()


def test_pipelines_are_what_upstream_declares() -> None:
    """Runs where sglang-omni can be imported, or where the contract environment has been made."""
    made = ROOT / ".cache/venvs/contract/bin/python"
    python = os.environ.get("OMNI_CONTRACT_PYTHON") or (str(made) if made.exists() else sys.executable)
    if python == sys.executable and find_spec("sglang_omni") is None:
        pytest.skip("sglang-omni is not installed: make the environment of docs/catalogue.md")
    script = ROOT / "tests/catalogue/regenerate_catalogue.py"
    run = subprocess.run([python, str(script), "--check"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
