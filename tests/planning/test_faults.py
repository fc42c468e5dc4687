"""A fault that takes the whole GPU restarts the replica's pods together, in order, and not too often."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omni_operator.api.v1alpha1 import GroupRestartStatus, OmniModelStatus
from omni_operator.planning.conditions import restart_history, status, with_restarts
from omni_operator.planning.faults import GroupRestart, delay, restarts
from omni_operator.planning.rollout import next_step
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
    found = restarts(plan.targets, world.observed(), True, history or {}, now)
    return {index for index, restart in found.items() if restart.last == now}


def test_that_replica_s_group_goes_whole_front_and_other_replica_stay(plan: Plan, world: World) -> None:
    end(world, "qwen3-omni-0-talker-ar", 72)
    assert due(plan, world) == {0}
    step = next_step(plan.targets, plan.rendered, world.observed(), frozenset({0}))
    assert {removal.name for removal in step.remove} == {
        name for name, pod in world.pods.items() if pod.replica == 0 and pod.component == "stage"
    }
    assert not step.apply


def test_it_starts_again_in_order(plan: Plan, world: World) -> None:
    end(world, "qwen3-omni-0-talker-ar", 72)
    for removal in next_step(plan.targets, plan.rendered, world.observed(), frozenset({0})).remove:
        world._remove(removal.kind, removal.name)
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
    assert not restarts(plan.targets, world.observed(), False, {}, NOW)
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
    assert restarts(plan.targets, world.observed(), True, history, later)[0].count == 4
    much_later = NOW + timedelta(hours=1)
    assert restarts(plan.targets, world.observed(), True, history, much_later)[0].count == 1


def test_the_status_remembers_it_and_nonsense_in_it_is_ignored(plan: Plan, world: World) -> None:
    end(world, "qwen3-omni-0-thinker", 72)
    history = restarts(plan.targets, world.observed(), True, {}, NOW)
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
    assert restarts(plan.targets, world.observed(), True, history, NOW) == {}
