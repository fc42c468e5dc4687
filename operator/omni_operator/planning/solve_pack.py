"""The solver's search: units, which are the GPU stages of one process, onto slots with so many steps of room each.

Depth first, biggest unit first. Exact: every packing that uses all the slots is either tried, or like one that is
tried, or already worse than the best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

from omni_operator.planning.layout import Layout, Stage
from omni_operator.planning.solve_demand import RANKS, Demand


@dataclass(frozen=True)
class Unit:
    """What goes together: the GPU stages of one process."""

    stages: tuple[Stage, ...]
    demand: Demand
    home: frozenset[int]
    """Upstream's own slots."""
    alone: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(stage.name for stage in self.stages)


@dataclass(frozen=True)
class Packing:
    slots: tuple[tuple[int, ...], ...]
    """By unit."""
    strangeness: int
    """Pairs of units that are together or apart otherwise than upstream has them."""
    spare: int
    """Steps that the biggest engine gets beyond its need."""


def pack(layout: Layout, units: tuple[Unit, ...], room: tuple[int, ...]) -> Packing | None:
    """The best packing that uses every one of these slots."""
    best: Packing | None = None
    choices = [[ranks for ranks in RANKS if ranks in unit.demand.steps and ranks <= len(room)] for unit in units]
    for ranks in sorted(product(*choices), key=lambda ranks: (sum(ranks), ranks)):
        if sum(unit.demand.steps[r] * r for unit, r in zip(units, ranks, strict=True)) > sum(room):
            continue
        best = _Search(layout, units, ranks, room).run(best)
        if best is not None:
            return best  # Splitting a stage further costs speed, and gains nothing here.
    return None


class _Search:
    """Depth-first over units; each goes to as many slots as it has ranks."""

    def __init__(self, layout: Layout, units: tuple[Unit, ...], ranks: tuple[int, ...], room: tuple[int, ...]) -> None:
        self.layout, self.units, self.ranks, self.room = layout, units, ranks, room
        self.apart = frozenset(frozenset(pair) for pair in layout.apart)
        self.single = layout.unshared or layout.on_device_plugin
        self.best: Packing | None = None

    def run(self, best: Packing | None) -> Packing | None:
        """The better of `best` and the best that is found."""
        self.best = best
        self._place((), 0)
        return self.best

    def _place(self, slots: tuple[tuple[int, ...], ...], strangeness: int) -> None:
        if self.best is not None and strangeness > self.best.strangeness:
            return
        number = len(slots)
        if number == len(self.units):
            self._finish(slots, strangeness)
            return
        for candidate in self._candidates(slots, self.ranks[number]):
            if self._fits((*slots, candidate)):
                self._place((*slots, candidate), strangeness + self._strange(slots, number, candidate))

    def _finish(self, slots: tuple[tuple[int, ...], ...], strangeness: int) -> None:
        if len({slot for placed in slots for slot in placed}) < len(self.room):
            return
        found = Packing(slots, strangeness, _spare(self.units, slots, self.ranks, self.room))
        if self.best is None or (found.strangeness, -found.spare) < (self.best.strangeness, -self.best.spare):
            self.best = found

    def _candidates(self, slots: tuple[tuple[int, ...], ...], ranks: int) -> Iterator[tuple[int, ...]]:
        """Sets of slots; of empty slots with equal room the first ones stand for all."""
        used = {slot for placed in slots for slot in placed}
        seen = set()
        for chosen in combinations(range(len(self.room)), ranks):
            key = tuple(slot if slot in used else -1 - self.room[slot] for slot in chosen)
            if tuple(sorted(key)) not in seen:
                seen.add(tuple(sorted(key)))
                yield chosen

    def _fits(self, slots: tuple[tuple[int, ...], ...]) -> bool:
        for slot in slots[-1]:
            there = [number for number, placed in enumerate(slots) if slot in placed]
            if len(there) > 1 and (self.single or any(self.units[number].alone for number in there)):
                return False
            names = frozenset().union(*(self.units[number].names for number in there if self.ranks[number] == 1))
            if any(pair <= names for pair in self.apart):
                return False
        # Also where the last unit is not: an encoder beside one rank of the thinker makes all its ranks bigger.
        used = {slot for placed in slots for slot in placed}
        return all(load(self.units, self.ranks, slots, slot) <= self.room[slot] for slot in used)

    def _strange(self, slots: tuple[tuple[int, ...], ...], number: int, candidate: tuple[int, ...]) -> int:
        home = self.units[number].home
        return sum(
            bool(set(placed) & set(candidate)) != bool(self.units[other].home & home)
            for other, placed in enumerate(slots)
        )


def load(units: tuple[Unit, ...], ranks: tuple[int, ...], slots: tuple[tuple[int, ...], ...], slot: int) -> int:
    """Steps that are given away of one slot, the encoder reserve where an encoder is beside its thinker."""
    return sum(
        units[number].demand.on(ranks[number], beside(units, slots, number))
        for number, placed in enumerate(slots)
        if slot in placed
    )


def beside(units: tuple[Unit, ...], slots: tuple[tuple[int, ...], ...], number: int) -> frozenset[str]:
    """Stages on any slot of a unit: its share is the same on each of them."""
    own = slots[number]
    return frozenset().union(*(units[n].names for n, placed in enumerate(slots) if not set(own).isdisjoint(placed)))


def _spare(
    units: tuple[Unit, ...], slots: tuple[tuple[int, ...], ...], ranks: tuple[int, ...], room: tuple[int, ...]
) -> int:
    engine = next((number for number, unit in enumerate(units) if unit.stages[0].engine), None)
    if engine is None:
        return 0
    return min(room[slot] - load(units, ranks, slots, slot) for slot in slots[engine])
