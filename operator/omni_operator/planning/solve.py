"""Proposes slots and shares for a model: the fewest GPUs, or the talker alone for the fastest first sound.

A small exact search. Shares are whole tenths of a percent, so every sum is one of integers. The number of GPUs rises
from one until stages can be packed; among packings of that many GPUs the one is taken that joins and parts stages most
as upstream's own layout does (tested beats untested), then the one that leaves the biggest engine most room for its KV
cache. Empty slots with the same room are interchangeable, so only the first is tried; a branch that is already worse
than the best packing is left. The result is deterministic, and passes the rules of `omni_operator.planning.budget`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import ceil

from omni_operator.api.quantities import Share, format_percent
from omni_operator.api.reasons import Reason
from omni_operator.catalogue.cards import Card
from omni_operator.catalogue.sizes import ModelSize
from omni_operator.planning.budget import check
from omni_operator.planning.estimate import kv_room
from omni_operator.planning.estimate_need import HELD_BACK, Workload
from omni_operator.planning.layout import Layout, Problem, Stage, refused
from omni_operator.planning.solve_demand import STEPS, Demand, demands_of
from omni_operator.planning.solve_pack import Packing, Unit, beside, load, pack

MAX_GPUS = 8


class Goal(StrEnum):
    """What a layout is to be good at."""

    FEWEST_GPUS = "FewestGpus"
    FIRST_SOUND = "FirstSound"
    """The talker has a GPU of its own: beside the thinker the slowest tenth of first sounds came about twice as late
    (sgl-project/sglang-omni#1235)."""


@dataclass(frozen=True)
class Placement:
    """Where a stage goes and with how much, and why."""

    stage: str
    slots: tuple[int, ...]
    budget: Share
    reason: str


@dataclass(frozen=True)
class Solution:
    """A layout that fits."""

    layout: Layout
    goal: Goal
    placements: tuple[Placement, ...]
    reasons: tuple[str, ...]
    """Why it is so, one sentence each."""

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return len(self.layout.slots)


@dataclass(frozen=True)
class Unsolved:
    """Why there is none."""

    problem: Problem


def solve(
    layout: Layout,
    size: ModelSize | None,
    card: Card,
    gpus: int = MAX_GPUS,
    goal: Goal = Goal.FEWEST_GPUS,
    workload: Workload | None = None,
) -> Solution | Unsolved:
    """Slots and shares for the stages of `layout` on at most `gpus` cards of one kind.

    What stages need comes from `size`; stages that it does not know keep the budget that they have. The layout's own
    slots count as upstream's. Unsolved where a need is not known, or nothing fits.
    """
    workload = workload or Workload()
    layout = replace(layout, card=card)
    demands = demands_of(layout, size, workload)
    if isinstance(demands, Problem):
        return Unsolved(demands)
    units = _units(layout, demands, goal)
    most = 1 if layout.together else min(gpus, MAX_GPUS)
    room = _room(layout, most)
    for count in range(1, most + 1):
        packing = pack(layout, units, room[:count])
        if packing is not None:
            return _solution(layout, size, workload, goal, units, packing, room)
    return Unsolved(_no_room(layout, units, card, most, goal))


def solve_any(
    layouts: Sequence[Layout],
    size: ModelSize | None,
    candidates: Iterable[Card],
    gpus: int = MAX_GPUS,
    goal: Goal = Goal.FEWEST_GPUS,
    workload: Workload | None = None,
) -> Solution | Unsolved:
    """The best of several layouts (a pipeline's variants) and kinds of card: fewest GPUs, then the smallest card, then
    the first layout. Where none works, the failure on the biggest card. Raises ValueError where nothing is given.
    """
    best: Solution | Unsolved | None = None
    for card in sorted(candidates, key=lambda card: (card.memory, card.name)):
        for layout in layouts:
            limit = best.gpus - 1 if isinstance(best, Solution) else gpus
            if limit < 1:
                break
            found = solve(layout, size, card, limit, goal, workload)
            if isinstance(found, Solution) or not isinstance(best, Solution):
                best = found
    if best is None:
        raise ValueError("there are no layouts or cards to choose from")
    return best


def talker_of(layout: Layout) -> str | None:
    """The stage that speaks beside another that thinks: the one named so, or the last of several engines; or None."""
    on_gpu = [stage for stage in layout.stages if stage.slots]
    named = [stage.name for stage in on_gpu if stage.name.startswith("talker")]
    engines = [stage.name for stage in on_gpu if stage.engine]
    return next(iter(named or engines[1:][-1:]), None)


def _units(layout: Layout, demands: Mapping[str, Demand], goal: Goal) -> tuple[Unit, ...]:
    """Biggest first, ties in pipeline order: what is hard to place is placed while there is room."""
    talker = talker_of(layout) if goal is Goal.FIRST_SOUND else None
    units = []
    for stages in layout.processes().values():
        placed = tuple(stage for stage in stages if stage.slots)
        if placed:
            demand = Demand.together([demands[stage.name] for stage in placed])
            home = frozenset(slot for stage in placed for slot in stage.slots)
            units.append(Unit(placed, demand, home, any(stage.name == talker for stage in placed)))
    return tuple(sorted(units, key=lambda unit: -unit.demand.steps[min(unit.demand.steps)]))


def _room(layout: Layout, gpus: int) -> tuple[int, ...]:
    """Steps that can be given away of each slot: the limit, less what is held back, less what others hold."""
    assert layout.card is not None
    free = min(layout.limit, 1 - HELD_BACK)
    room = []
    for slot in range(gpus):
        held = sum(
            (
                Fraction(neighbour.footprint.bytes_of(layout.card.memory), layout.card.memory)
                for neighbour in layout.neighbours
                if neighbour.slot == slot and neighbour.footprint is not None
            ),
            Fraction(0),
        )
        room.append(int((free - held) * STEPS))
    return tuple(room)


def _solution(
    layout: Layout,
    size: ModelSize | None,
    workload: Workload,
    goal: Goal,
    units: tuple[Unit, ...],
    packing: Packing,
    room: tuple[int, ...],
) -> Solution | Unsolved:
    slots = packing.slots if layout.neighbours else _numbered(units, packing.slots)
    steps = _shares(units, slots, room)
    placed = {
        stage.name: (slots[number], steps[stage.name]) for number, unit in enumerate(units) for stage in unit.stages
    }
    stages = tuple(
        replace(
            stage,
            slots=placed[stage.name][0],
            ranks=len(placed[stage.name][0]),
            budget=Share(Fraction(placed[stage.name][1], STEPS)),
        )
        if stage.name in placed
        else stage
        for stage in layout.stages
    )
    solved = replace(layout, stages=stages)
    problems = check(solved)
    if refused(problems):
        return Unsolved(problems[0])
    placements = tuple(_placement(solved, stage, size, workload) for stage in stages if stage.name in placed)
    return Solution(solved, goal, placements, _reasons(solved, goal, packing))


def _numbered(units: tuple[Unit, ...], slots: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Slots renumbered as upstream numbers them where that can be, otherwise in the order of use."""
    first = {
        slot: min((min(unit.home), number) for number, unit in enumerate(units) if slot in slots[number])
        for slot in {slot for placed in slots for slot in placed}
    }
    names = {slot: name for name, slot in enumerate(sorted(first, key=lambda slot: (first[slot], slot)))}
    return tuple(tuple(sorted(names[slot] for slot in placed)) for placed in slots)


def _shares(units: tuple[Unit, ...], slots: tuple[tuple[int, ...], ...], room: tuple[int, ...]) -> dict[str, int]:
    """By stage, of one copy: what it needs; what is left of a GPU goes to the biggest engine there, for its cache."""
    ranks = tuple(len(placed) for placed in slots)
    used = {slot for placed in slots for slot in placed}
    left = {slot: room[slot] - load(units, ranks, slots, slot) for slot in used}
    steps: dict[str, int] = {}
    for number, unit in enumerate(units):
        together = unit.demand.by_stage(ranks[number], beside(units, slots, number))
        given = {stage.name: together[stage.name] // stage.copies for stage in unit.stages}
        engine = next((stage for stage in unit.stages if stage.engine), None)
        if engine is not None:
            copies = engine.copies
            extra = min(left[slot] for slot in slots[number]) // copies
            given[engine.name] += extra
            for slot in slots[number]:
                left[slot] -= extra * copies
        steps |= given
    return steps


def _placement(layout: Layout, stage: Stage, size: ModelSize | None, workload: Workload) -> Placement:
    assert isinstance(stage.budget, Share)
    room = None if size is None else kv_room(layout, stage, size, workload)
    reason = "what it needs, rounded up to a tenth of a percent"
    if room is not None:
        reason = f"its weights, and a KV cache of {room.tokens} tokens"
    elif size is None or not size.of_stage(stage.name):
        reason = "as declared: its size is not known"
    if len(stage.slots) > 1:
        reason += f", split over {len(stage.slots)} GPUs"
    return Placement(stage.name, stage.slots, stage.budget, reason)


def _reasons(layout: Layout, goal: Goal, packing: Packing) -> tuple[str, ...]:
    count = len(layout.slots)
    reasons = [f"Takes {count} GPU{'s' if count > 1 else ''}; no packing takes fewer."]
    talker = talker_of(layout)
    if goal is Goal.FIRST_SOUND and talker is not None:
        reasons.append(f"{talker} is alone on its GPU: sharing it made the slowest first sounds about twice as late.")
    if goal is Goal.FIRST_SOUND and talker is None:
        reasons.append("No stage speaks beside another that thinks, so the fastest first sound is the fewest GPUs.")
    if packing.strangeness == 0:
        reasons.append("Stages are together and apart as upstream's own layout has them.")
    for slot in layout.slots:
        given = layout.uses[slot].total
        reasons.append(f"GPU {slot} keeps {format_percent(1 - given)} free for CUDA graphs and workspaces.")
    return tuple(reasons)


def _no_room(layout: Layout, units: tuple[Unit, ...], card: Card, gpus: int, goal: Goal) -> Problem:
    talker = talker_of(layout) if goal is Goal.FIRST_SOUND else None
    names = frozenset().union(*(unit.names for unit in units))
    smallest = [unit.demand.by_stage(min(unit.demand.steps), names) for unit in units]
    needed = {name: steps for given in smallest for name, steps in given.items()}
    listed = ", ".join(f"{name} {format_percent(Fraction(steps, STEPS))}" for name, steps in needed.items())
    more = f"Use another variant than {layout.variant}, which" if layout.together else "Allow more GPUs,"
    more += " upstream keeps on one GPU," if layout.together else ""
    return Problem(
        Reason.BUDGET_EXCEEDED,
        f"No layout fits {gpus} GPU{'s' if gpus > 1 else ''} of {card.name}: of one card, {listed} "
        f"are needed and {format_percent(1 - HELD_BACK)} can be given away"
        + (f"; for the first sound {talker} has a GPU of its own." if talker else "."),
        "spec.gpus",
        stages=tuple(needed),
        needed=ceil(sum(Fraction(steps, STEPS) for steps in needed.values()) * card.memory),
        available=gpus * card.memory,
        remedy=f"{more} choose a bigger card, serve shorter requests, or use FP8 weights.",
    )
