"""A fault that takes the whole GPU restarts the replica's pods together, in order, and not too often."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omni_operator.api.v1alpha1 import GroupRestartStatus, OmniModelStatus
from omni_operator.planning.conditions import restart_history, status, with_restarts
from omni_operator.planning.faults import GroupRestart, Groups, delay, groups
from omni_operator.rendering.plan import Plan
from tests.planning.worlds import World, plan_of

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@pytest.fixture
def plan(colocated: dict[str, Any]) -> Plan:
    colocated["spec"]["replicas"] = 2
    return plan_of(colocated)


@pytest.fixture
def world(plan: Plan) -> World:
    found = World()
    found.settle(plan)
    return found


def end(world: World, pod: str, code: int) -> None:
    world.pods[pod] = replace(world.pods[pod], ready=False, restarts=1, exit_code=code, exit_message="it broke")


def due(plan: Plan, world: World, history: dict[int, GroupRestart] | None = None, now: datetime = NOW) -> set[int]:
    return set(judged(plan, world, history, now).restart)


def judged(
    plan: Plan, world: World, history: dict[int, GroupRestart] | None = None, now: datetime = NOW, mps: bool = True
) -> Groups:
    return groups(plan.targets, world.observed(), mps, history or {}, now)


def test_that_replica_s_group_goes_whole_front_and_other_replica_stay(plan: Plan, world: World) -> None:
    end(world, "qwen3-omni-0-talker-ar", 72)
    assert due(plan, world) == {0}
    step = world.pass_(plan)
    assert {removal.name for removal in step.removals} == {
        name for name, pod in world.pods.items() if pod.replica == 0 and pod.component == "stage"
    }
    assert not step.apply


def test_it_starts_again_in_order(plan: Plan, world: World) -> None:
    end(world, "qwen3-omni-0-talker-ar", 72)
    world.step(plan)
    world.log.clear()
    world.settle(plan)
    opened = [line.split()[1] for line in world.log if line.startswith("open")]
    assert opened[0] == "qwen3-omni-0-thinker"
    assert all(pod.ready for pod in world.pods.values())


@pytest.mark.parametrize("code", [71, 73, 74, 75, 78])
def test_a_stage_s_own_end_leaves_its_neighbours_alone(plan: Plan, world: World, code: int) -> None:
    end(world, "qwen3-omni-0-talker-ar", code)
    assert due(plan, world) == set()


def test_a_kill_counts_under_mps_only_and_a_cpu_stage_never(plan: Plan, world: World) -> None:
    end(world, "qwen3-omni-0-talker-ar", 137)
    assert due(plan, world) == {0}
    assert not judged(plan, world, mps=False).restart
    world.settle(plan)
    end(world, "qwen3-omni-1-decode", 137)
    end(world, "qwen3-omni-0-talker-ar", 0)
    assert due(plan, world) == set()


def test_a_group_that_faults_again_waits_longer_each_time(plan: Plan, world: World) -> None:
    end(world, "qwen3-omni-0-thinker", 72)
    assert [delay(count).total_seconds() for count in (1, 2, 3, 20)] == [10, 20, 40, 600]
    history = {0: GroupRestart(0, 3, NOW, "")}
    assert due(plan, world, history, NOW + timedelta(seconds=39)) == set()
    later = NOW + timedelta(seconds=40)
    assert due(plan, world, history, later) == {0}
    assert judged(plan, world, history, later).history[0].count == 4
    much_later = NOW + timedelta(hours=1)
    assert judged(plan, world, history, much_later).history[0].count == 1


def test_the_status_remembers_it_and_nonsense_in_it_is_ignored(plan: Plan, world: World) -> None:
    end(world, "qwen3-omni-0-thinker", 72)
    history = judged(plan, world).history
    found = with_restarts(
        status(plan.subject, plan.layout, plan.problems, plan.targets, plan.rendered, world.observed(),
               OmniModelStatus(), NOW),
        history,
    )  # fmt: skip
    assert restart_history(found) == history
    assert "thinker ended with exit code 72" in (found.group_restarts or [])[0].reason
    row = GroupRestartStatus(replica=0, restarts=1, last_restart="yesterday", reason="")
    assert restart_history(OmniModelStatus(group_restarts=[row])) == {}


def test_a_replica_that_is_gone_is_forgotten(plan: Plan, world: World) -> None:
    history = {7: GroupRestart(7, 1, NOW, "")}
    assert judged(plan, world, history).history == {}


def test_a_restart_in_the_future_was_now_and_keeps_nothing_off_for_longer(plan: Plan, world: World) -> None:
    """A clock that was ahead, or someone who wrote the status."""
    end(world, "qwen3-omni-0-thinker", 72)
    far = {0: GroupRestart(0, 1, NOW + timedelta(days=400), "")}
    found = judged(plan, world, far)
    assert (found.restart, found.history[0].last, found.look_again) == ({}, NOW, delay(1))
    assert due(plan, world, dict(found.history), NOW + delay(1)) == {0}


@pytest.mark.parametrize("count", [-(10**9), -1, 0, 10**9])
def test_any_number_of_restarts_in_the_status_is_bearable(plan: Plan, world: World, count: int) -> None:
    end(world, "qwen3-omni-0-thinker", 72)
    row = GroupRestartStatus(replica=0, restarts=count, last_restart="2026-11-29T11:40:00", reason="")
    assert due(plan, world, dict(restart_history(OmniModelStatus(group_restarts=[row])))) == {0}


def test_the_faulted_pod_goes_last_so_that_half_a_restart_is_finished(plan: Plan, world: World) -> None:
    """The operator is killed after any of the removals."""
    end(world, "qwen3-omni-0-talker-ar", 72)
    step = world.pass_(plan)
    assert [removal.name for removal in step.remove_last] == ["qwen3-omni-0-talker-ar"]
    for count in range(len(step.removals)):
        again = World(dict(world.pods), dict(world.claims), dict(world.others), dict(world.requests))
        for removal in step.removals[:count]:
            again._remove(removal.kind, removal.name)
        again.finish_deletions()
        again.step(plan)
        left = {name for name, pod in again.pods.items() if pod.replica == 0 and pod.node and not pod.deleting}
        assert left == {"qwen3-omni-0--front"}, f"after {count} removals"


def test_when_its_delay_ends_it_is_looked_at_without_an_event(plan: Plan, world: World) -> None:
    end(world, "qwen3-omni-0-thinker", 72)
    history = {0: GroupRestart(0, 3, NOW - timedelta(seconds=15), "")}
    assert judged(plan, world, history).look_again == timedelta(seconds=25)


def test_an_unhealthy_gpu_restarts_its_replica_and_is_named(plan: Plan, world: World) -> None:
    world.edit("qwen3-omni-1-talker-ar", unhealthy="gpu.nvidia.com/node-a/gpu-3: XID 79")
    found = judged(plan, world)
    assert set(found.restart) == {1}
    assert found.history[1].reason == "a GPU of talker_ar is unhealthy: gpu.nvidia.com/node-a/gpu-3: XID 79"


def test_a_tainted_gpu_takes_the_rest_of_the_replica_too_and_counts_once(plan: Plan, world: World) -> None:
    """Kubernetes evicts the pods one by one; those that stay would keep the claim on the tainted device."""
    world.edit("qwen3-omni-0-code2wav", deleting=True, disruption="DeletionByDeviceTaintManager")
    world.step(plan)
    assert all(pod.deleting for pod in world.pods.values() if pod.replica == 0 and pod.component == "stage")
    assert "was tainted" in world.history[0].reason
    for _ in range(4):
        world.later(20)
        world.step(plan)
    assert world.history[0].count == 1
    for name in [name for name in world.pods if name.endswith("0-thinker")]:
        del world.pods[name]
    for _ in range(4):
        world.later(20)
        world.step(plan)
    assert world.history[0].count == 1, "a new pod that waits for its turn is no part of what is to go"
    world.settle(plan)
    assert all(pod.ready for pod in world.pods.values())


def test_any_other_eviction_leaves_the_neighbours_alone(plan: Plan, world: World) -> None:
    world.edit("qwen3-omni-0-code2wav", deleting=True, disruption="EvictionByEvictionAPI")
    assert due(plan, world) == set()
