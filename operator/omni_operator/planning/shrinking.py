"""Remedies that lower budgets: of one stage, of several together, of one on each GPU, or a KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from omni_operator.api.quantities import MIB, Amount, Budget, Share
from omni_operator.planning.budget import check
from omni_operator.planning.changes import (
    Floor,
    Kind,
    Remedy,
    by_name,
    changed_remedy,
    loss_of,
    nothing_known,
    replaced,
    size_of,
)
from omni_operator.planning.layout import Layout, Problem, Stage
from omni_operator.planning.shrink import PERCENT_STEP, largest_fitting_budget

SENSIBLE_PART = Fraction(1, 2)
"""Where nothing is known of a stage's size, it is not asked to give up more than half of its budget."""
MOST_STAGES_SHRUNK = 3


def overbooked(layout: Layout) -> tuple[int, ...]:
    """GPUs whose stages ask for more than may be given away."""
    return tuple(slot for slot, use in layout.uses.items() if use.total > layout.limit)


def shrinks(layout: Layout, floor: Floor) -> Iterator[Remedy]:
    """Lower the budget of one stage; where no one stage is enough, of two or three together, or of one on each GPU."""
    candidates = {
        stage.name: stage
        for slot in overbooked(layout)
        for stage in layout.uses[slot].stages
        if stage.budget is not None
    }
    single = [remedy for stage in candidates.values() for remedy in _shrunk_one(layout, stage, floor)]
    yield from single
    if single and len(overbooked(layout)) == 1:
        return
    by_size = sorted(candidates.values(), key=lambda stage: (-size_of(layout, stage), stage.name))[:5]
    for count in range(2, MOST_STAGES_SHRUNK + 1):
        for group in combinations(by_size, count):
            yield from _shrunk_together(layout, group, floor)
    if len(overbooked(layout)) > 1:
        yield from _shrunk_on_each(layout, floor)


def smaller_kv_caches(layout: Layout) -> Iterator[Remedy]:
    """For a KV cache bigger than its stage's budget: as much as the budget leaves."""
    for problem in check(layout):
        yield from _smaller_kv_cache(layout, problem)


def _shrunk_on_each(layout: Layout, floor: Floor) -> Iterator[Remedy]:
    """Where several GPUs are overbooked: the biggest stage of each that can give what is missing."""
    changed: dict[str, Stage] = {}
    loss = Fraction(0)
    current = layout
    while troubled := overbooked(current):
        use = current.uses[troubled[0]]
        for stage in sorted(use.stages, key=lambda stage: (-size_of(current, stage), stage.name)):
            wanted = largest_fitting_budget(current, stage)
            if wanted is not None and can_live_on(current, stage, wanted, floor):
                break
        else:
            return
        changed[stage.name] = _with_budget(stage, wanted, current)
        loss += loss_of(stage, wanted)
        current = replace(current, stages=replaced(current, changed))
    yield changed_remedy(Kind.SHRINK, layout, changed, loss, floor)


def _shrunk_one(layout: Layout, stage: Stage, floor: Floor) -> Iterator[Remedy]:
    wanted = largest_fitting_budget(layout, stage)
    if wanted is None or not can_live_on(layout, stage, wanted, floor):
        return
    smaller = _with_budget(stage, wanted, layout)
    yield changed_remedy(Kind.SHRINK, layout, {stage.name: smaller}, loss_of(stage, wanted), floor)


def _shrunk_together(layout: Layout, group: tuple[Stage, ...], floor: Floor) -> Iterator[Remedy]:
    """Each gives up the same part of its budget, so that together they fit."""
    scale = Fraction(1)
    for use in layout.uses.values():
        inside = sum((use.share_of(s) or Fraction(0) for s in group if use.slot in s.slots), Fraction(0))
        if inside and use.total > layout.limit:
            scale = min(scale, (layout.limit - (use.total - inside)) / inside)
    if not 0 < scale < 1:
        return
    changed: dict[str, Stage] = {}
    loss = Fraction(0)
    for stage in group:
        wanted = _scaled(stage.budget, scale)
        if wanted is None or wanted == stage.budget or not can_live_on(layout, stage, wanted, floor):
            return
        changed[stage.name] = _with_budget(stage, wanted, layout)
        loss += loss_of(stage, wanted)
    yield changed_remedy(Kind.SHRINK, layout, changed, loss, floor)


def _smaller_kv_cache(layout: Layout, problem: Problem) -> Iterator[Remedy]:
    if problem.available is None or len(problem.stages) != 1 or not problem.field.endswith(".kvCache"):
        return
    stage = by_name(layout, problem.stages[0])
    if stage.kv_cache is None or stage.kv_cache <= problem.available:
        return
    smaller = problem.available * 9 // 10 // MIB * MIB
    if smaller > 0:
        lost = Fraction(stage.kv_cache - smaller, layout.card.memory) if layout.card else Fraction(1)
        note = "The rest of the budget is for weights: check that they fit it."
        yield replace(
            changed_remedy(Kind.SHRINK, layout, {stage.name: replace(stage, kv_cache=smaller)}, lost, nothing_known),
            note=note,
        )


def can_live_on(layout: Layout, stage: Stage, wanted: Budget, floor: Floor) -> bool:
    """Whether a stage can work with a smaller budget, as far as anybody knows."""
    least = floor(stage, layout)
    if least is not None and layout.card is not None:
        return wanted.bytes_of(layout.card.memory) >= least
    if stage.budget is None or type(wanted) is not type(stage.budget):
        return False
    return Fraction(wanted.value) >= Fraction(stage.budget.value) * SENSIBLE_PART


def _with_budget(stage: Stage, wanted: Budget, layout: Layout) -> Stage:
    """The stage with a smaller budget; what it gives up comes off a declared KV cache."""
    if stage.kv_cache is None or stage.budget is None or layout.card is None:
        return replace(stage, budget=wanted)
    lost = stage.budget.bytes_of(layout.card.memory) - wanted.bytes_of(layout.card.memory)
    smaller = (stage.kv_cache - lost) // MIB * MIB
    return replace(stage, budget=wanted, kv_cache=max(smaller, MIB))


def _scaled(budget: Budget | None, scale: Fraction) -> Budget | None:
    if isinstance(budget, Share):
        value = Fraction(int(budget.value * scale * PERCENT_STEP), PERCENT_STEP)
        return Share(value) if value > 0 else None
    if isinstance(budget, Amount):
        amount = int(budget.value * scale) // MIB * MIB
        return Amount(amount) if amount > 0 else None
    return None
