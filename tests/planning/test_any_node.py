"""Placement AnyNode: a claim for each set of slots that some process joins, each on a node of its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.planning.worlds import World, look, plan_of


@pytest.fixture
def spread(tiny: dict[str, Any]) -> dict[str, Any]:
    """The thinker split over GPUs 0 and 1, the talker on GPU 2; two stages on the CPU."""
    tiny["spec"]["gpus"]["placement"] = "AnyNode"
    tiny["spec"]["stages"] = [
        {"name": "thinker", "gpus": [0, 1], "gpuMemory": "60%"},
        {"name": "talker", "gpus": [2], "gpuMemory": "20%"},
    ]
    return tiny


def test_slots_that_a_stage_joins_share_a_claim_and_others_have_their_own(spread: dict[str, Any]) -> None:
    world = World()
    world.settle(plan_of(spread))
    assert world.requests == {"tiny-omni-0-slot0": ["slot0", "slot1"], "tiny-omni-0-slot2": ["slot2"]}
    claims = {pod.process: pod.claim for pod in world.pods.values() if pod.component == "stage"}
    assert claims == {
        "thinker": "tiny-omni-0-slot0",
        "talker": "tiny-omni-0-slot2",
        "preprocessing": None,
        "decode": None,
    }


def test_stages_on_the_cpu_wait_for_nobody(spread: dict[str, Any]) -> None:
    world = World()
    world.step(plan_of(spread))
    assert {pod.process for pod in world.pods.values() if pod.gated} == {"thinker", "talker"}


def test_the_gpus_of_every_claim_are_in_the_status(spread: dict[str, Any]) -> None:
    world, plan = World(), plan_of(spread)
    world.settle(plan)
    found = look(world, plan)
    assert {row.slot: (row.node, row.uuid) for row in found.gpus or []} == {
        0: ("node-of-tiny-omni-0-slot0", "GPU-0-of-tiny-omni-0-slot0"),
        1: ("node-of-tiny-omni-0-slot0", "GPU-1-of-tiny-omni-0-slot0"),
        2: ("node-of-tiny-omni-0-slot2", "GPU-2-of-tiny-omni-0-slot2"),
    }
    assert {row.status for row in found.conditions or []} == {"True"}


def test_another_card_replaces_every_claim_each_when_it_is_empty(spread: dict[str, Any]) -> None:
    world = World()
    world.settle(plan_of(spread))
    changed = copy.deepcopy(spread)
    changed["metadata"]["generation"] = 2
    changed["spec"]["gpus"]["card"] = "h200"
    world.settle(plan_of(changed))
    assert len(world.claims) == 2
    assert world.log.count("delete ResourceClaim tiny-omni-0-slot0") == 1
    assert world.log.count("delete ResourceClaim tiny-omni-0-slot2") == 1


def test_from_one_node_to_any_no_claim_of_before_is_left(spread: dict[str, Any]) -> None:
    before = copy.deepcopy(spread)
    before["spec"]["gpus"]["placement"] = "SameNode"
    world = World()
    world.settle(plan_of(before))
    assert set(world.claims) == {"tiny-omni-0"}
    spread["metadata"]["generation"] = 2
    world.settle(plan_of(spread))
    assert set(world.claims) == {"tiny-omni-0-slot0", "tiny-omni-0-slot2"}
    assert world.step(plan_of(spread)).empty
