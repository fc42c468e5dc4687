"""Stages that do not come up: they are named in time, and a group that found no room together is placed anew."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from omni_operator.planning.starting import FREEING_LIMIT, PLACEMENT_GRACE, look_again
from omni_operator.rendering.avoid import avoiding_nodes
from omni_operator.rendering.plan import Plan
from tests.planning.test_conditions import conditions, stage
from tests.planning.worlds import NOW, World, look, plan_of

THINKER, TALKER = "qwen3-omni-0-thinker", "qwen3-omni-0-talker-ar"
NO_CPU = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims."
LIMIT = 1800


@pytest.fixture
def plan(colocated: dict[str, Any]) -> Plan:
    return plan_of(colocated)


@pytest.fixture
def begun(plan: Plan) -> World:
    """The thinker's gate was opened."""
    world = World()
    world.step(plan)
    world.step(plan)
    return world


def stuck(plan: Plan, words: str = NO_CPU) -> World:
    """The thinker is ready, and its node has no room for the talker."""
    world = World()
    world.step(plan)
    world.step(plan)
    world.schedule()
    world.become_ready(THINKER)
    world.step(plan)
    world.edit(TALKER, unschedulable=words)
    return world


STUCK: list[tuple[str, dict[str, Any], str]] = [
    ("an image", {"node": "a", "waiting": "ImagePullBackOff: no such image"}, "ImagePullBackOff: no such image"),
    ("a volume", {"node": "a", "refusal": "FailedMount: no such claim"}, "FailedMount: no such claim"),
    ("a node", {"unschedulable": "0/3 nodes are available."}, "0/3 nodes are available."),
    ("a container", {"node": "a", "started": NOW}, "its container, which runs and does not become ready"),
    ("nothing known", {"node": "a"}, "its container"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), [row[1:] for row in STUCK], ids=[row[0] for row in STUCK])
def test_a_stage_whose_time_has_passed_is_named_with_what_it_waits_for(
    plan: Plan, begun: World, changes: dict[str, Any], words: str
) -> None:
    begun.edit(THINKER, **changes)
    begun.later(LIMIT - 1)
    assert stage(look(begun, plan), "thinker")[0] in ("Starting", "Pending")
    assert look_again(plan.targets, begun.observed(), begun.now) == timedelta(seconds=1)
    begun.later(1)
    found = look(begun, plan)
    limit = "StageStartTimeout: thinker was not ready within 1800 s (startupTimeout) of its turn"
    assert stage(found, "thinker") == ("Failed", f"{limit}; it waits for: {words}")
    for condition in ("StagesReady", "Ready"):
        assert conditions(found)[condition].reason == "StageStartTimeout"
        assert words in conditions(found)[condition].message
    begun.step(plan)
    assert begun.pods[TALKER].gated, "a limit that passed opens no later gate"


NOT_COUNTED: list[tuple[str, dict[str, Any]]] = [
    ("its container ended once", {"restarts": 1, "exit_code": 73}),
    ("it was ready before", {"started": NOW, "ready_since": NOW + timedelta(seconds=9)}),
    ("it is ready", {"ready": True}),
    ("it goes", {"deleting": True}),
    ("it was evicted", {"phase": "Failed"}),
]


@pytest.mark.parametrize("changes", [row[1] for row in NOT_COUNTED], ids=[row[0] for row in NOT_COUNTED])
def test_the_limit_is_for_the_first_start_alone(plan: Plan, begun: World, changes: dict[str, Any]) -> None:
    begun.edit(THINKER, node="a", **changes)
    begun.later(2 * LIMIT)
    assert "startupTimeout) of its turn" not in (stage(look(begun, plan), "thinker")[1] or "")


def test_a_stage_behind_its_gate_is_not_late(plan: Plan, begun: World) -> None:
    begun.later(2 * LIMIT)
    assert stage(look(begun, plan), "talker_ar") == ("Gated", "waits for thinker on GPU 0")


def test_the_longest_limit_of_a_pod_s_stages_counts(colocated: dict[str, Any]) -> None:
    colocated["spec"]["stages"][2]["startupTimeout"] = "50m"
    plan, world = plan_of(colocated), World()
    world.step(plan)
    world.step(plan)
    world.edit(THINKER, node="a")
    assert look_again(plan.targets, world.observed(), world.now) == timedelta(minutes=50)


def test_a_pod_without_room_on_its_group_s_node_is_told_before_anything_is_done(plan: Plan) -> None:
    world = stuck(plan)
    assert world.step(plan).empty
    scheduled = conditions(look(world, plan))["Scheduled"]
    assert (scheduled.status, scheduled.reason) == ("False", "Unschedulable")
    node = "node-of-qwen3-omni-0"
    assert f"talker_ar needs cpu that node {node} lacks (Insufficient cpu)" in scheduled.message
    assert "within 60 s" in scheduled.message
    assert look_again(plan.targets, world.observed(), world.now) == PLACEMENT_GRACE


def test_after_the_grace_its_gpus_are_released_and_it_starts_anew_in_order_later(plan: Plan) -> None:
    world = stuck(plan)
    world.later(60)
    step = world.step(plan)
    assert [removal.name for removal in step.remove_last] == [TALKER], "what shows why goes last"
    assert all(pod.deleting for pod in world.pods.values() if pod.component == "stage")
    said = conditions(look(world, plan))["Scheduled"].message
    node = "node-of-qwen3-omni-0"
    assert said == (
        f"talker_ar needs cpu that node {node} lacks (Insufficient cpu); its GPUs were released, and the replica is "
        "placed anew after 10 s"
    )
    world.finish_deletions()
    world.step(plan)
    assert not world.claims["qwen3-omni-0"].allocated
    world.later(9)
    assert world.step(plan).empty, "others may take the GPUs meanwhile"
    world.later(1)
    assert [pod.name for pod in world.step(plan).open_gates] == [THINKER]
    world.settle(plan)
    assert all(pod.ready for pod in world.pods.values())


def test_the_pause_doubles_and_the_next_look_is_at_its_end(plan: Plan) -> None:
    world = stuck(plan)
    for count in (1, 2, 3):
        world.later(60)
        world.step(plan)
        assert (world.history[0].count, world.history[0].node) == (count, "node-of-qwen3-omni-0")
        world.finish_deletions()
        world.step(plan)
        world.later(10 * 2 ** (count - 1) - 1)
        assert not world.step(plan).open_gates
        world.later(1)
        world.step(plan)
        world.schedule()
        world.become_ready(THINKER)
        world.step(plan)
        world.edit(TALKER, unschedulable=NO_CPU)


def test_new_pods_of_that_replica_alone_prefer_another_node(plan: Plan) -> None:
    world = stuck(plan)
    world.later(60)
    world.step(plan)
    world.finish_deletions()
    step = world.pass_(plan)
    made = avoiding_nodes(step, {0: "gpu-1", 1: "gpu-2"}).apply
    stages = [child for child in made if child.name in {pod.name for pod in plan.targets[0].pods}]
    assert len(stages) == 7
    for child in stages:
        affinity = child.manifest["spec"]["affinity"]["nodeAffinity"]
        [preferred] = affinity.pop("preferredDuringSchedulingIgnoredDuringExecution")
        assert preferred["preference"]["matchFields"] == [
            {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-1"]}
        ]
        assert affinity == {}, "no node is forbidden"
    assert {(child.name, child.hash) for child in made} == {(child.name, child.hash) for child in step.apply}
    assert avoiding_nodes(step, {1: "gpu-2"}) == step


def test_where_nothing_of_a_group_runs_nothing_is_released(plan: Plan, begun: World) -> None:
    begun.edit(THINKER, unschedulable=NO_CPU)
    begun.later(3600)
    assert begun.step(plan).empty
    assert begun.history == {}


def test_other_words_of_the_scheduler_release_too(plan: Plan) -> None:
    world = stuck(plan, "0/2 nodes are available: 1 node(s) had untolerated taint(s).")
    world.later(60)
    world.step(plan)
    assert "talker_ar finds no room on node node-of-qwen3-omni-0" in world.history[0].reason


def test_a_turn_in_the_future_counts_from_now(plan: Plan) -> None:
    world = stuck(plan)
    world.edit(TALKER, turn_since=world.now + timedelta(days=9))
    assert look_again(plan.targets, world.observed(), world.now) == PLACEMENT_GRACE


def freed_late(plan: Plan) -> World:
    """All pods were removed and made anew, and the claim controller has not been there yet."""
    world = World()
    world.settle(plan)
    claim = world.claims["qwen3-omni-0"]
    for name in [name for name, pod in world.pods.items() if pod.component == "stage"]:
        del world.pods[name]
    world.step(plan)
    assert world.claims["qwen3-omni-0"] == claim
    return world


def test_the_first_gate_waits_until_the_claim_is_freed(plan: Plan) -> None:
    world = freed_late(plan)
    assert not world.step(plan).open_gates
    assert stage(look(world, plan), "thinker") == ("Gated", "waits until the GPUs that it had are given back")
    world.free_claims()
    assert [pod.name for pod in world.step(plan).open_gates] == [THINKER]


def test_a_claim_that_is_never_freed_is_taken_as_it_is(plan: Plan) -> None:
    """Someone else's pod may be on it."""
    world = freed_late(plan)
    assert look_again(plan.targets, world.observed(), world.now) == FREEING_LIMIT
    world.later(30)
    assert [pod.name for pod in world.step(plan).open_gates] == [THINKER]


def test_pods_of_the_future_do_not_wait_for_their_claim(plan: Plan) -> None:
    world = freed_late(plan)
    world.later(-5)
    assert [pod.name for pod in world.step(plan).open_gates] == [THINKER]
