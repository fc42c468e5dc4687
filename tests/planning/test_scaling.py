"""Replicas come with the lowest free number, and go with the unready first."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from omni_operator.planning.observed import ObservedPod
from omni_operator.planning.targets import existing_replicas, replica_indices
from tests.planning.worlds import World, plan_of


def scaled(manifest: dict[str, Any], replicas: int) -> dict[str, Any]:
    result = copy.deepcopy(manifest)
    result["spec"]["replicas"] = replicas
    return result


def running(manifest: dict[str, Any], replicas: int) -> World:
    world = World()
    world.settle(plan_of(scaled(manifest, replicas)))
    return world


def settle(world: World, manifest: dict[str, Any], most: int = 60) -> None:
    """With a new look at the replicas before each step, as each pass has."""
    for _ in range(most):
        step = world.step(plan_of(manifest, world))
        world.finish_deletions()
        world.schedule()
        world.become_ready()
        if step.empty:
            return
    raise AssertionError("it does not come to rest")


def there(world: World) -> set[int]:
    return {pod.replica for pod in world.pods.values()}


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_the_unready_one_goes_first_and_the_others_are_not_touched(tiny: dict[str, Any], broken: int) -> None:
    world = running(tiny, 3)
    name = f"tiny-omni-{broken}-talker"
    world.pods[name] = replace(world.pods[name], ready=False)
    before = {pod.uid for pod in world.pods.values() if pod.replica != broken}
    settle(world, scaled(tiny, 2))
    assert there(world) == {0, 1, 2} - {broken}
    assert {pod.uid for pod in world.pods.values()} == before
    assert {claim.replica for claim in world.claims.values()} == {0, 1, 2} - {broken}


def test_of_equals_the_last_goes(tiny: dict[str, Any]) -> None:
    world = running(tiny, 3)
    settle(world, scaled(tiny, 2))
    assert there(world) == {0, 1}


def test_one_that_is_going_stays_chosen_when_another_becomes_unready_meanwhile(tiny: dict[str, Any]) -> None:
    world = running(tiny, 3)
    world.step(plan_of(scaled(tiny, 2), world))
    for name, pod in world.pods.items():
        if pod.replica == 0:
            world.pods[name] = replace(pod, ready=False)
    settle(world, scaled(tiny, 2))
    assert there(world) == {0, 1}


def test_the_lowest_free_number_comes_back(tiny: dict[str, Any]) -> None:
    world = running(tiny, 3)
    world.pods["tiny-omni-1-talker"] = replace(world.pods["tiny-omni-1-talker"], ready=False)
    settle(world, scaled(tiny, 2))
    settle(world, scaled(tiny, 4))
    assert there(world) == {0, 1, 2, 3}


def test_to_nothing_and_back(tiny: dict[str, Any]) -> None:
    world = running(tiny, 2)
    settle(world, scaled(tiny, 0))
    assert (world.pods, world.claims) == ({}, {})
    settle(world, scaled(tiny, 1))
    assert there(world) == {0}


def test_numbers_come_from_names_and_a_model_s_name_is_no_pattern() -> None:
    def pod(name: str, label: int) -> ObservedPod:
        return ObservedPod(name, "u", label, "stage", "p", "h", 1)

    assert existing_replicas("m", [pod("m-3-thinker", 0), pod("m-12--front", -1)]) == (3, 12)
    assert existing_replicas("m.x", [pod("m-x-3-thinker", 0), pod("mxx-4-thinker", 0)]) == ()


def test_chosen_numbers() -> None:
    assert replica_indices(0, (2, 0)) == ()
    assert replica_indices(1, (2, 0)) == (2,)
    assert replica_indices(3, (2, 5)) == (0, 2, 5)
