"""Catalogue and overrides → a layout, or problems with the path of the field to change."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from omni_operator.api.enums import Placement, SharingBackend, SharingStrategy
from omni_operator.api.quantities import MIB, Amount, QuantityError, Share
from omni_operator.api.reasons import Reason
from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.catalogue import pipelines
from omni_operator.planning.budget import Verdict, check, verdict
from omni_operator.planning.layout import Layout, Severity
from omni_operator.planning.resolve import Resolution, parse_duration, resolve

QWEN = {"id": "Qwen/Qwen3-Omni-30B-A3B-Instruct", "variant": "speech-colocated"}
ONE_H100 = [
    ("image_encoder", "2%"),
    ("audio_encoder", "2%"),
    ("thinker", "78%"),
    ("talker_ar", "10%"),
    ("code2wav", "2%"),
]


def resolved(model: dict[str, Any] | None = None, **spec: Any) -> Resolution:
    return resolve(
        OmniModelSpec.model_validate({"model": {**QWEN, **(model or {}), "cache": {"emptyDir": {}}}, **spec})
    )


def layout_of(resolution: Resolution) -> Layout:
    assert resolution.layout is not None, [str(problem) for problem in resolution.problems]
    return resolution.layout


def colocated(**shares: str) -> list[dict[str, Any]]:
    return [{"name": name, "gpus": [0], "gpuMemory": shares.get(name, share)} for name, share in ONE_H100]


def test_the_catalogue_fills_in_what_the_user_left_out() -> None:
    layout = layout_of(resolved(gpus={"card": "h100-80gb"}, stages=colocated()))
    assert layout.pipeline == "qwen3_omni"
    thinker = next(stage for stage in layout.stages if stage.name == "thinker")
    assert (thinker.slots, thinker.budget, thinker.engine) == ((0,), Share(Fraction(78, 100)), True)
    assert [problem.reason for problem in check(layout)] == [Reason.BUDGET_TIGHT], "the estimate, and nothing else"


def test_each_stage_is_a_process_of_its_own_unless_an_edge_must_stay_in_one() -> None:
    layout = layout_of(resolved(stages=colocated()))
    assert all(stage.process == stage.name for stage in layout.stages)
    for pipeline in pipelines().values():
        for variant in pipeline.variants.values():
            found = layout_of(resolved({"id": "x/y", "pipeline": pipeline.name, "variant": variant.name}))
            by_name = {stage.name: stage for stage in found.stages}
            local = {name for edge in variant.process_local_edges for name in edge}
            for first, second in variant.process_local_edges:
                assert by_name[first].process == by_name[second].process
            assert all(stage.process == stage.name for stage in found.stages if stage.name not in local)


def test_auto_becomes_mps_where_a_slot_is_shared_and_none_where_not() -> None:
    assert layout_of(resolved(stages=colocated())).strategy is SharingStrategy.MPS
    apart = [{"name": name, "gpus": [i]} for i, (name, _) in enumerate(ONE_H100)]
    assert layout_of(resolved({"variant": "speech"}, stages=apart)).strategy is SharingStrategy.NONE
    assert layout_of(resolved(stages=colocated())).backend is SharingBackend.DRA
    assert layout_of(resolved(stages=colocated())).placement is Placement.SAME_NODE


def test_a_variant_made_for_one_gpu_is_refused_on_two() -> None:
    spread = [*colocated()[:-1], {"name": "code2wav", "gpus": [1], "gpuMemory": "2%"}]
    (problem,) = [p for p in check(layout_of(resolved(stages=spread))) if p.severity is Severity.ERROR]
    assert (problem.reason, problem.slot, problem.stages) == (Reason.LAYOUT_UNSUPPORTED, 1, ("code2wav",))
    assert "Put code2wav on GPU 0" in problem.remedy


def test_a_card_that_reports_no_memory_is_asked_for_its_size() -> None:
    (problem,) = resolved(gpus={"card": "gb10"}).problems
    assert (problem.reason, problem.severity) == (Reason.CARD_MISSING, Severity.QUESTION)
    assert "spec.gpus.memory" in problem.remedy


def test_what_was_declared_is_kept() -> None:
    layout = layout_of(
        resolved(
            gpus={
                "memory": "81559Mi",
                "maxShare": "94%",
                "placement": "AnyNode",
                "sharing": {"strategy": "TimeSlicing", "backend": "DevicePlugin", "multiUser": True},
            },
            stages=[
                {
                    "name": "thinker",
                    "gpus": [0, 1],
                    "tensorParallelSize": 2,
                    "gpuMemory": "60Gi",
                    "kvCache": "8Gi",
                    "process": "p",
                    "computePercentage": 70,
                    "startOrder": 3,
                    "startupTimeout": "1h",
                    "engineArgs": {"max_running_requests": 16},
                }
            ],
        )
    )
    thinker = next(stage for stage in layout.stages if stage.name == "thinker")
    assert thinker.budget == Amount(60 * 1024 * MIB)
    assert (thinker.kv_cache, thinker.ranks, thinker.process) == (8 * 1024 * MIB, 2, "p")
    assert (thinker.compute_percentage, thinker.start_order, thinker.startup_timeout) == (70, 3, 3600)
    assert thinker.engine_args == {"max_running_requests": 16}
    assert thinker.path == "spec.stages[0]"
    assert (layout.limit, layout.placement, layout.multi_user) == (Fraction(94, 100), Placement.ANY_NODE, True)
    assert (layout.strategy, layout.backend) == (SharingStrategy.TIME_SLICING, SharingBackend.DEVICE_PLUGIN)
    assert layout.card is not None
    assert layout.card.memory == 81559 * MIB


def test_a_stage_moved_to_the_cpu_loses_the_catalogues_budget() -> None:
    layout = layout_of(resolved(stages=[{"name": "thinker", "gpus": []}]))
    thinker = next(stage for stage in layout.stages if stage.name == "thinker")
    assert (thinker.slots, thinker.budget) == ((), None)


@pytest.mark.parametrize(
    ("spec", "reason", "field", "says"),
    [
        ({"model": {"id": "who/knows"}}, Reason.UNKNOWN_PIPELINE, "spec.model.pipeline", "does not know"),
        (
            {"model": {"pipeline": "qwen3_omi"}},
            Reason.UNKNOWN_PIPELINE,
            "spec.model.pipeline",
            "Did you mean qwen3_omni?",
        ),
        ({"model": {"variant": "speach"}}, Reason.UNKNOWN_VARIANT, "spec.model.variant", "Did you mean speech?"),
        ({"gpus": {"card": "h100"}}, Reason.UNKNOWN_CARD, "spec.gpus.card", "give its size as spec.gpus.memory"),
        ({"gpus": {"card": "h100-80gb", "memory": "81559Mi"}}, Reason.INVALID_SPEC, "spec.gpus", "twice"),
        ({"stages": [{"name": "thinkr"}]}, Reason.UNKNOWN_STAGE, "spec.stages[0].name", "Did you mean thinker?"),
        ({"stages": [{"name": "thinker"}, {"name": "thinker"}]}, Reason.INVALID_SPEC, "spec.stages[1].name", "twice"),
    ],
)
def test_what_cannot_be_resolved_names_the_field_and_the_way_out(
    spec: dict[str, Any], reason: Reason, field: str, says: str
) -> None:
    model = spec.pop("model", None)
    resolution = resolved(model, **spec)
    assert resolution.layout is None
    assert [(p.reason, p.field) for p in resolution.problems] == [(reason, field)]
    assert says in str(resolution.problems[0])


def test_everything_that_is_wrong_is_said_at_once() -> None:
    resolution = resolved(gpus={"card": "h100"}, stages=[{"name": "thinkr"}, {"name": "talkr"}])
    assert [p.field for p in resolution.problems] == ["spec.gpus.card", "spec.stages[0].name", "spec.stages[1].name"]


def test_the_marketing_size_of_a_card_is_a_warning_with_the_right_figure() -> None:
    resolution = resolved(gpus={"memory": "80Gi"}, stages=colocated())
    assert [(p.reason, p.severity) for p in resolution.problems] == [(Reason.CARD_SIZE_SUSPECT, Severity.WARNING)]
    assert "81559Mi" in str(resolution.problems[0])
    assert resolution.layout is not None


@pytest.mark.parametrize(
    "gpus",
    [
        {"deviceClassName": "mig.nvidia.com"},
        {"selector": "device.attributes['gpu.nvidia.com'].type == 'mig'"},
        {"selector": "device.attributes['gpu.nvidia.com'].profile == '2g.20gb'"},
    ],
)
def test_slices_are_planned_by_their_own_memory_and_never_by_the_cards_name(gpus: dict[str, str]) -> None:
    by_name = resolved(gpus={"card": "h100-80gb", **gpus}, stages=colocated())
    assert [(p.reason, p.severity) for p in by_name.problems] == [(Reason.CARD_SIZE_SUSPECT, Severity.ERROR)]
    by_memory = resolved(gpus={"memory": "20000Mi", **gpus}, stages=colocated())
    assert by_memory.problems == ()


def test_without_any_memory_shares_are_summed_and_bytes_are_asked_for() -> None:
    resolution = resolved(stages=colocated())
    layout = layout_of(resolution)
    assert layout.card is None
    assert layout.uses[0].total == Fraction(94, 100)
    assert verdict(check(layout)) is Verdict.UNDECIDED


def test_the_spec_is_not_written() -> None:
    spec = OmniModelSpec.model_validate({"model": {**QWEN, "cache": {"emptyDir": {}}}, "stages": colocated()})
    before = spec.model_dump(exclude_unset=True)
    resolve(spec)
    assert spec.model_dump(exclude_unset=True) == before


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("45m", 2700), ("1h30m", 5400), ("1h1m1s", 3661)])
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "1d", "1.5h", "-1m", "1m1h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_duration(text)
