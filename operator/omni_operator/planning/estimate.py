"""Whether a model fits a layout, why not, and what fits instead: the estimate beside the rules.

`accounts` sets what each card has against what its stages need; `check_estimate` says what cannot work and by how
much; `room_for` how long and how many requests can be; `cards_that_fit` tries the catalogue. The rules of
`omni_operator.planning.budget` compare what is declared; this compares what is declared with what the model needs. No
float decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from omni_operator.api.quantities import MIB, Amount, format_bytes
from omni_operator.api.reasons import Reason
from omni_operator.catalogue.cards import Card, cards
from omni_operator.catalogue.sizes import ModelSize
from omni_operator.planning.budget import check
from omni_operator.planning.estimate_need import (
    HELD_BACK,
    KvRoom,
    Part,
    PartKind,
    StageNeed,
    Workload,
    engine_headroom,
    kv_room,
    smallest_budget,
    stage_need,
    stage_needs,
)
from omni_operator.planning.layout import Layout, Problem, Severity, Stage, refused
from omni_operator.planning.rules.model import raised

__all__ = [
    "HELD_BACK",
    "CardFit",
    "KvRoom",
    "Line",
    "Part",
    "PartKind",
    "SlotAccount",
    "StageNeed",
    "Workload",
    "accounts",
    "cards_that_fit",
    "check_estimate",
    "engine_headroom",
    "kv_room",
    "room_for",
    "smallest_budget",
    "stage_need",
    "stage_needs",
    "with_needs",
]


@dataclass(frozen=True)
class Line:
    """One stage in a card's account, all its copies there, or a neighbour. `size` is in bytes, None if unknown."""

    stage: str
    size: int | None
    declared: bool
    """Whether it is the stage's own gpuMemory; otherwise it is estimated."""
    need: StageNeed | None = None


@dataclass(frozen=True)
class SlotAccount:
    """What one slot's card has, and what is needed of it. All in bytes."""

    slot: int
    card: int
    lines: tuple[Line, ...]
    held_back: int

    @property
    def needed(self) -> int:
        """All that is known to be needed, what is held back included."""
        return self.held_back + sum(line.size or 0 for line in self.lines)

    @property
    def missing(self) -> int:
        """By how much the card is too small; 0 where it is not."""
        return max(0, self.needed - self.card)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Stages that declare nothing and whose size is not known."""
        return tuple(line.stage for line in self.lines if line.size is None)


@dataclass(frozen=True)
class CardFit:
    """Whether a layout works on a card."""

    card: Card
    problems: tuple[Problem, ...]

    @property
    def fits(self) -> bool:
        """Whether nothing but warnings was found."""
        return not refused(self.problems)


def accounts(layout: Layout, size: ModelSize, workload: Workload | None = None) -> tuple[SlotAccount, ...]:
    """The account of each slot: declared budgets as declared, other stages as estimated. Empty without a card."""
    if layout.card is None:
        return ()
    held_back = ceil(HELD_BACK * layout.card.memory)
    return tuple(
        SlotAccount(
            slot,
            layout.card.memory,
            (
                *(_line(layout, layout.card, stage, size, workload or Workload()) for stage in layout.on_slot(slot)),
                *_others(layout, layout.card, slot),
            ),
            held_back,
        )
        for slot in layout.slots
    )


def check_estimate(layout: Layout, size: ModelSize, workload: Workload | None = None) -> tuple[Problem, ...]:
    """What the model needs and does not get. Errors cannot work; warnings work, but for less than the model could do.

    A context that the workload names must fit; the model's own limit only warns.
    """
    if layout.card is None:
        return ()
    workload = workload or Workload()
    found = [problem for stage in layout.stages for problem in _of_stage(layout, layout.card, stage, size, workload)]
    found += [problem for account in accounts(layout, size, workload) for problem in _of_slot(account)]
    return tuple(sorted(found, key=lambda problem: problem.severity is Severity.WARNING))


def cards_that_fit(
    layout: Layout, size: ModelSize, workload: Workload | None = None, candidates: Iterable[Card] | None = None
) -> tuple[CardFit, ...]:
    """Each candidate, smallest first, with what speaks against it; the catalogue's cards unless given.

    Shares scale with the card, amounts stay, and stages that declare nothing get what they need. The same rules decide
    as at admission.
    """
    found = []
    for card in sorted(candidates or cards().values(), key=lambda card: (card.memory, card.name)):
        moved = replace(layout, card=card)
        problems = check(replace(with_needs(moved, size, workload), size=None)) + check_estimate(moved, size, workload)
        found.append(CardFit(card, problems))
    return tuple(found)


def with_needs(layout: Layout, size: ModelSize, workload: Workload | None = None) -> Layout:
    """The layout, with what it needs as the budget of each stage that declares none and whose size is known."""
    needs = stage_needs(layout, size, workload or Workload())
    return replace(
        layout,
        stages=tuple(
            replace(stage, budget=Amount(needs[stage.name].capped))
            if stage.budget is None and stage.name in needs
            else stage
            for stage in layout.stages
        ),
    )


def room_for(layout: Layout, name: str, size: ModelSize, workload: Workload | None = None) -> KvRoom | None:
    """How much KV cache a stage can have: of its own budget, or without one of what the rest leaves of its cards.

    None where the stage has no cache, or where the card or the size of another stage is not known.
    """
    stage = next(stage for stage in layout.stages if stage.name == name)
    if stage.budget is not None:
        return kv_room(layout, stage, size, workload)
    found = [account for account in accounts(layout, size, workload) if account.slot in stage.slots]
    if not found or any(account.unknown for account in found):
        return None
    own = {line.stage: line.size or 0 for account in found for line in account.lines}[name]
    left = min(account.card - account.needed for account in found) + own
    if left <= 0:
        left = 1  # A budget is above 0; what it leaves for the cache is below it all the same.
    rest = replace(stage, budget=Amount(left // stage.copies_per_slot or 1))
    return kv_room(layout, rest, size, workload)


def _line(layout: Layout, card: Card, stage: Stage, size: ModelSize, workload: Workload) -> Line:
    need = stage_need(layout, stage, size, workload)
    if stage.budget is not None:
        return Line(stage.name, stage.budget.bytes_of(card.memory) * stage.copies_per_slot, True, need)
    if need is None:
        return Line(stage.name, None, False)
    return Line(stage.name, need.total * stage.copies_per_slot, False, need)


def _others(layout: Layout, card: Card, slot: int) -> Iterator[Line]:
    """What other tenants are known to hold of a slot's card."""
    for neighbour in layout.neighbours:
        if neighbour.slot == slot:
            held = neighbour.footprint
            yield Line(neighbour.name, None if held is None else held.bytes_of(card.memory), held is not None)


def _of_slot(account: SlotAccount) -> Iterator[Problem]:
    """Where stages declare nothing the rules cannot add up; the estimate can."""
    estimated = [line for line in account.lines if not line.declared and line.size is not None]
    if not estimated or not account.missing:
        return
    listed = ", ".join(f"{line.stage} {format_bytes(line.size)}" for line in account.lines if line.size)
    yield Problem(
        Reason.BUDGET_EXCEEDED,
        f"GPU {account.slot} is too small: {listed}, and {format_bytes(account.held_back)} held back for CUDA graphs "
        f"and workspaces, are {format_bytes(account.needed, account.card)} of {format_bytes(account.card)}; "
        f"{format_bytes(account.missing)} too many.",
        "spec.stages",
        slot=account.slot,
        stages=tuple(line.stage for line in account.lines),
        needed=account.needed,
        available=account.card,
        remedy="Move a stage to another GPU, serve shorter requests, use FP8 weights, or choose a bigger card.",
    )


def _of_stage(layout: Layout, card: Card, stage: Stage, size: ModelSize, workload: Workload) -> Iterator[Problem]:
    need = stage_need(layout, stage, size, workload)
    if need is None or stage.budget is None:
        return
    budget = stage.budget.bytes_of(card.memory)
    cache = need.of(PartKind.KV_CACHE)
    if budget < need.weights:
        yield _problem(Reason.BUDGET_EXCEEDED, Severity.ERROR, stage, card, need, "cannot even hold its weights")
    elif need.token and budget - need.fixed < need.token:
        yield _problem(Reason.BUDGET_EXCEEDED, Severity.ERROR, stage, card, need, "leaves no room for a KV cache")
    elif need.token and budget - need.fixed < cache:
        asked = workload.context is not None or stage.kv_cache is not None
        severity = Severity.ERROR if asked else Severity.WARNING
        reason = Reason.KV_CACHE_EXCEEDED if asked else Reason.BUDGET_TIGHT
        room = int((budget - need.fixed) / need.token)
        tokens = ceil(cache / need.token)
        yield _problem(reason, severity, stage, card, need, f"leaves room for {room} of {tokens} tokens")
    elif not need.token and budget < need.capped:
        why = "holds its weights, but not what it works with"
        yield _problem(Reason.BUDGET_TIGHT, Severity.WARNING, stage, card, need, why)


def _problem(reason: Reason, severity: Severity, stage: Stage, card: Card, need: StageNeed, why: str) -> Problem:
    """One sentence with the account, and the way out: upwards, for a lower share makes it worse."""
    assert stage.budget is not None
    budget = stage.budget.bytes_of(card.memory)
    parts = ", ".join(f"{part.kind} {format_bytes(part.size)}" for part in need.parts if part.size)
    each = f" on each of its {need.ranks} GPUs" if need.ranks > 1 else ""
    given, needed = _apart(budget, need.capped)
    said = given if isinstance(stage.budget, Amount) else f"{stage.budget} ({given})"
    return Problem(
        reason,
        f"Stage {stage.name}: gpuMemory {said} {why}: it needs {needed}{each} ({parts}).",
        f"{stage.path}.gpuMemory",
        severity,
        slot=stage.slots[0],
        stages=(stage.name,),
        needed=need.capped,
        available=budget,
        remedy=raised(stage, need, card),
    )


def _apart(budget: int, needed: int) -> tuple[str, str]:
    """Both amounts, precise enough to differ; the smaller rounded down and the bigger up."""
    texts = format_bytes(budget), format_bytes(needed)
    return texts if texts[0] != texts[1] else (f"{budget // MIB}Mi", f"{-(-needed // MIB)}Mi")
