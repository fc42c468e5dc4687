"""A pod that has a node and does not start: whom kubelet is asked about, and what its words come to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omni_operator.planning.observed import ObservedPod
from omni_operator.planning.refusals import PATIENCE, look_again, overdue
from tests.planning.test_conditions import conditions, look, stage
from tests.planning.worlds import World, plan_of

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
BOUND = ObservedPod("p", "u", 0, "stage", "thinker", "h", 1, node="a", bound=NOW - timedelta(minutes=1))
PREPARE = "FailedPrepareDynamicResources: Failed to prepare dynamic resources: NodePrepareResources failed: "
WORDS = [
    "error validating GPU config: unknown GPU sharing strategy: MPS",
    'error validating GPU config: "MPS" is selected as the GPU sharing strategy, but the "MPSSupport" feature gate is '
    "not enabled",
]


def test_one_that_waits_for_too_long_is_asked_about() -> None:
    assert overdue(BOUND, NOW)
    assert overdue(replace(BOUND, waiting="ContainerCreating"), NOW)


@pytest.mark.parametrize(
    "change",
    [
        {"node": None},
        {"deleting": True},
        {"ready": True},
        {"phase": "Failed"},
        {"started": NOW},
        {"restarts": 1},
        {"exit_code": 78},
        {"waiting": "ImagePullBackOff: no such image"},
        {"bound": NOW - PATIENCE + timedelta(seconds=1)},
    ],
    ids=str,
)
def test_all_others_cost_no_call(change: dict[str, Any]) -> None:
    assert not overdue(replace(BOUND, **change), NOW)


def test_clocks_that_differ_lead_to_asking_too_early_at_worst() -> None:
    assert overdue(replace(BOUND, bound=NOW + timedelta(hours=1)), NOW)


def test_it_is_looked_at_again_when_its_time_is_over_and_until_it_starts() -> None:
    fresh = replace(BOUND, bound=NOW - timedelta(seconds=5))
    assert look_again([fresh], NOW) == timedelta(seconds=10)
    assert look_again([BOUND], NOW) == PATIENCE
    assert look_again([replace(BOUND, started=NOW), replace(BOUND, node=None)], NOW) is None


@pytest.mark.parametrize("words", WORDS)
def test_a_driver_without_its_gate_is_named_with_the_remedy(colocated: dict[str, Any], words: str) -> None:
    world, plan = World(), plan_of(colocated)
    world.step(plan)
    world.step(plan)
    world.schedule()
    name = "qwen3-omni-0-thinker"
    world.pods[name] = replace(world.pods[name], refusal=PREPARE + words)
    found = look(world, plan)
    told = conditions(found)
    for kind in ("SharingReady", "Ready"):
        assert (told[kind].status, told[kind].reason) == ("False", "MpsUnavailable")
        assert "turn on the feature gate MPSSupport" in told[kind].message
        assert "TimeSlicing" in told[kind].message
    assert stage(found, "thinker")[0] == "Failed"
    assert stage(found, "talker_ar")[0] == "Gated"


def test_any_other_refusal_is_passed_on_in_kubelets_words(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.step(plan)
    world.step(plan)
    world.schedule()
    name = "qwen3-omni-0-thinker"
    world.pods[name] = replace(world.pods[name], refusal='FailedMount: secret "hub" not found')
    found = look(world, plan)
    assert stage(found, "thinker") == ("Starting", 'FailedMount: secret "hub" not found')
    assert 'secret "hub" not found' in conditions(found)["Ready"].message
