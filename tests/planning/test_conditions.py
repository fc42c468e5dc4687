"""The status tells a person what is waited for, and never says Ready too early."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from omni_operator.api.v1alpha1 import Condition, OmniModelStatus
from omni_operator.planning.conditions import refused_status
from omni_operator.rendering.plan import Plan, plan_for, subject_of
from tests.planning.worlds import NOW, SETTINGS, World, look, plan_of

LATER = datetime(2026, 11, 29, 12, 5, tzinfo=UTC)


def conditions(found: OmniModelStatus) -> dict[str, Condition]:
    return {condition.type: condition for condition in found.conditions or []}


def stage(found: OmniModelStatus, name: str) -> tuple[str, str | None]:
    row = next(row for row in found.stages or [] if row.name == name)
    return row.state, row.reason


def test_before_anything_runs_it_says_who_waits_for_whom(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.step(plan)
    world.step(plan)
    world.schedule()
    found = look(world, plan)
    assert stage(found, "thinker") == ("Starting", None)
    assert stage(found, "talker_ar") == ("Gated", "waits for thinker on GPU 0")
    assert found.stages_ready == "0/7"
    assert conditions(found)["Accepted"].status == "True"
    assert conditions(found)["Ready"].status == "False"
    assert found.endpoint == "http://qwen3-omni.default.svc:8000/v1"
    assert found.gpu_summary == "0: 94%"


def test_when_all_serve_every_condition_is_true_and_the_gpu_is_named(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    found = look(world, plan)
    assert {c.status for c in found.conditions or []} == {"True"}
    assert found.stages_ready == "7/7"
    assert found.ready_replicas == found.replicas == 1
    gpus = {uuid for row in found.stages or [] for uuid in row.gpu_uuids or []}
    assert gpus == {"GPU-0-of-qwen3-omni-0"}
    assert (found.gpus or [])[0].given_away == "94%"


def test_it_says_who_keeps_whom_within_its_share(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    found = look(world, plan)
    by = {row.name: row.enforced_by for row in found.stages or []}
    assert by == dict.fromkeys(by, None) | dict.fromkeys(
        ("thinker", "talker_ar", "image_encoder", "audio_encoder", "code2wav"), "MPS"
    )
    assert conditions(found)["SharingReady"].message == (
        "5 pods share their GPUs through MPS, each attached to the control daemon of its GPU, which keeps each process "
        "within its limit."
    )
    colocated["spec"]["gpus"]["sharing"]["strategy"] = "TimeSlicing"
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    found = look(world, plan)
    by = {row.name: row.enforced_by for row in found.stages or []}
    assert (by["thinker"], by["talker_ar"], by["code2wav"]) == ("engine", "engine", "nothing")
    assert conditions(found)["SharingReady"].message == (
        "5 pods share their GPUs by time-slicing; the engines keep thinker, talker_ar within their shares; nothing "
        "keeps image_encoder, audio_encoder, code2wav within gpuMemory."
    )


def test_ready_waits_for_the_last_pod_of_the_generation(colocated: dict[str, Any]) -> None:
    world = World()
    world.settle(plan_of(colocated))
    colocated["metadata"]["generation"] = 2
    colocated["spec"]["image"] = "stage:2"
    found = look(world, plan_of(colocated))
    assert conditions(found)["Ready"].reason == "Replacing"
    assert conditions(found)["Ready"].observed_generation == 2


def test_transition_times_change_with_the_status_only(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.step(plan)
    first = look(world, plan)
    world.settle(plan)
    second = look(world, plan, first, LATER)
    assert conditions(second)["Accepted"].last_transition_time == "2026-11-29T12:00:00Z"
    assert conditions(second)["Ready"].last_transition_time == "2026-11-29T12:05:00Z"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(71, "OutOfBudget"), (72, "GpuFault"), (73, "StageFailed"), (75, "StageStartTimeout"), (78, "BadConfig")],
)
def test_an_exit_code_becomes_a_reason_that_names_the_stage(colocated: dict[str, Any], code: int, reason: str) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    thinker = world.pods["qwen3-omni-0-thinker"]
    world.pods[thinker.name] = replace(thinker, ready=False, restarts=1, exit_code=code, exit_message="it broke")
    found = look(world, plan)
    ready = conditions(found)["Ready"]
    assert ready.reason == reason
    assert "thinker (Restarting" in ready.message
    assert "it broke" in ready.message


def test_the_scheduler_s_words_are_passed_on(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.step(plan)
    world.step(plan)
    thinker = world.pods["qwen3-omni-0-thinker"]
    world.pods[thinker.name] = replace(thinker, unschedulable="0/1 nodes are available: cannot allocate all claims.")
    ready = conditions(look(world, plan))["Ready"]
    assert ready.reason == "WaitingForGpu"
    assert "thinker waits for 1 GPU of 81559Mi or more" in ready.message
    assert "cannot allocate all claims" in ready.message
    world.edit(thinker.name, unschedulable="0/1 nodes are available: 1 Insufficient cpu.")
    assert conditions(look(world, plan))["Ready"].reason == "Unschedulable"


def test_a_refusal_says_the_gpu_the_sum_the_excess_and_the_fix(overbooked: dict[str, Any]) -> None:
    problems = plan_for(overbooked, SETTINGS)
    assert not isinstance(problems, Plan)
    found = refused_status(subject_of(overbooked, None), problems, World().observed(), OmniModelStatus(), NOW)
    accepted = conditions(found)["Accepted"]
    assert (accepted.status, accepted.reason) == ("False", "BudgetExceeded")
    for words in (
        "spec.stages: ",
        "GPU 0",
        "104% of 100%",
        "thinker 88%",
        "talker_ar 10%",
        "4% (about 3.2Gi) too many",
        "88% to 84%",
    ):
        assert words in accepted.message
    assert "Nothing was created" in conditions(found)["Ready"].message


def test_a_refused_change_leaves_what_runs_and_says_both(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    before = look(world, plan)
    colocated["metadata"]["generation"] = 2
    colocated["spec"]["stages"][2]["gpuMemory"] = "88%"
    problems = plan_for(colocated, SETTINGS)
    assert not isinstance(problems, Plan)
    found = refused_status(subject_of(colocated, None), problems, world.observed(), before, LATER)
    assert "Generation 1 is left running" in conditions(found)["Ready"].message
    assert found.stages == before.stages
    assert conditions(found)["StagesReady"].status == "True"
    assert conditions(found)["StagesReady"].observed_generation == 1
