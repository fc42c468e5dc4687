"""Never more GPU memory than the budget, at any moment of any series of edits."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from omni_operator.api.quantities import parse_percent
from omni_operator.rendering.plan import Plan, plan_for
from tests.planning.worlds import SETTINGS, World, plan_of

LAYOUTS = ("one card", "two cards", "any node")
MOVES = 60


def manifest(chance: random.Random, colocated: dict[str, Any], layout: str) -> dict[str, Any]:
    colocated["spec"]["replicas"] = 2
    for place, stage in enumerate(chance.sample(colocated["spec"]["stages"], 5)):
        stage["startOrder"] = place
    if layout != "one card":
        colocated["spec"]["model"]["variant"] = "speech"
        for stage in colocated["spec"]["stages"]:
            stage["gpus"] = [1] if stage["name"] in ("talker_ar", "code2wav") else [0]
    if layout == "any node":
        colocated["spec"]["gpus"]["placement"] = "AnyNode"
    return colocated


def edited(chance: random.Random, before: dict[str, Any], generation: int) -> dict[str, Any]:
    """Shares are moved between stages of a card that stays full, or something else changes."""
    while True:
        after = copy.deepcopy(before)
        after["metadata"]["generation"] = generation
        stages = {stage["name"]: stage for stage in after["spec"]["stages"]}
        for card in {tuple(stage["gpus"]) for stage in stages.values()}:
            names = [name for name, stage in stages.items() if tuple(stage["gpus"]) == card]
            small = {name: chance.randint(2, 9) for name in names if name not in ("thinker", "talker_ar")}
            left = 100 - sum(small.values())
            most = 78 if chance.random() < 0.8 else 90  # what the first claim's daemon allows, or more
            shares = dict(small)
            if "thinker" in names:
                shares["thinker"] = chance.randint(72, most) if "talker_ar" in names else left
            if "talker_ar" in names:
                shares["talker_ar"] = left - shares.get("thinker", 0)
            for name, share in shares.items():
                stages[name]["gpuMemory"] = f"{share}%"
        if chance.random() < 0.2:
            after["spec"]["image"] = f"stage:{generation}"
        if chance.random() < 0.2:
            after["spec"]["replicas"] = chance.randint(1, 2)
        if isinstance(plan_for(after, SETTINGS), Plan):
            return after


def given_away(world: World) -> dict[tuple[str | None, int], Fraction]:
    """Of each GPU, by claim and slot: what the pods that run on it were told that they may take, whatever is declared
    by now. A pod that is being removed holds its memory until it is gone."""
    taken: dict[tuple[str | None, int], Fraction] = defaultdict(Fraction)
    for pod in world.pods.values():
        for slot, share in world.shares[pod.uid].items() if pod.node else ():
            taken[pod.claim, slot] += share
    return taken


def moves(chance: random.Random, world: World, plan: Plan) -> Iterator[None]:
    """What the operator, the scheduler, the claim controller and kubelet do, in any order; now and then the operator is
    killed in the middle of its writes, a container ends, or a GPU fails."""
    for _ in range(MOVES):
        move = chance.choice(["step", "step", "cut", "schedule", "ready", "gone", "free", "fault", "time"])
        running = [name for name, pod in world.pods.items() if pod.node and pod.component == "stage"]
        if move == "step":
            world.step(plan)
        elif move == "cut":
            world.step(plan, writes=chance.randint(0, 6))
        elif move == "schedule":
            world.schedule()
        elif move == "ready":
            world.become_ready()
        elif move == "gone":
            leaving = sorted(name for name, pod in world.pods.items() if pod.deleting)
            world.finish_deletions(chance.sample(leaving, chance.randint(0, len(leaving))))
        elif move == "free":
            world.free_claims()
        elif move == "fault" and running and chance.random() < 0.2:
            world.edit(chance.choice(running), ready=False, restarts=1, exit_code=chance.choice([72, 73]))
        else:
            world.later(chance.choice([1, 5, 30]))
        yield


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_shares_of_running_pods_never_exceed_a_gpu(colocated: dict[str, Any], layout: str) -> None:
    limit = parse_percent("100%")
    fullest = Fraction(0)
    for seed in range(12):
        chance = random.Random(seed)
        wanted = manifest(chance, copy.deepcopy(colocated), layout)
        world = World()
        for generation in range(2, 6):
            plan = plan_of(wanted)
            for _ in moves(chance, world, plan):
                taken = given_away(world)
                assert all(share <= limit for share in taken.values()), (seed, generation, taken)
                fullest = max(fullest, *taken.values(), 0)
            if chance.random() < 0.7:
                world.later(3600)
                world.settle(plan)
            wanted = edited(chance, wanted, generation)
        world.later(3600)
        world.settle(plan_of(wanted))
        assert all(pod.ready for pod in world.pods.values())
        assert all(share <= limit for share in given_away(world).values())
    assert fullest > Fraction(99, 100), "the cards were full"
