"""The smallest changes that make a refused layout fit, ranked, each re-checked by the same rules before it is offered.

Pure and deterministic: the same layout gets the same remedies in the same order, whatever the order of its stages. A
remedy is a list of changes to fields of the spec, so that a user can make it by hand, `--set` can make it, and a test
can apply it and look whether the result is accepted.

Ranking: what touches least of what was wanted comes first (say what was not said, shrink a KV cache or a share, move a
stage to a GPU that is there, add a GPU, FP8 weights, a bigger card), and within a kind what takes least away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from omni_operator.api.quantities import MIB, Amount, Share, format_bytes
from omni_operator.catalogue import Card, cards
from omni_operator.planning.budget import accepted, check
from omni_operator.planning.changes import (
    Change,
    Floor,
    Kind,
    Lighter,
    Remedy,
    changed_remedy,
    loss_of,
    nothing_known,
    replaced,
    size_of,
)
from omni_operator.planning.declaring import declarations
from omni_operator.planning.layout import Layout, Severity, Stage
from omni_operator.planning.rules.model import with_weights
from omni_operator.planning.rules.slots import MAX_CLAIM_RESULTS
from omni_operator.planning.shrink import largest_fitting_budget
from omni_operator.planning.shrinking import can_live_on, overbooked, shrinks, smaller_kv_caches

MOST_OFFERED = 8
"""Remedies that anybody reads."""
WITHOUT_FP8 = frozenset({"Ampere", "Turing", "Volta"})
"""Architectures whose tensor cores do not compute FP8."""
MOST_OF_A_KIND = 3
"""So that one kind does not hide the others."""


def remedies(
    layout: Layout, *, floor: Floor | None = None, lighter: Lighter | None = None, most: int = MOST_OFFERED
) -> tuple[Remedy, ...]:
    """Ranked remedies of a refused layout; none for one that is accepted, or that no change of these kinds helps.

    `floor` and `lighter` come from the estimate, where the model's size is known: no stage is then shrunk below what it
    needs, and FP8 weights are offered.
    """
    if accepted(layout):
        return ()
    needs = floor or nothing_known
    found = [
        *declarations(layout, needs),
        *_raises(layout),
        *shrinks(layout, needs),
        *smaller_kv_caches(layout),
        *_moves(layout),
        *_added_slots(layout),
        *(_fp8(layout, needs, lighter) if lighter else ()),
        *_bigger_cards(layout),
    ]
    best: dict[tuple[str, ...], Remedy] = {}
    for remedy in sorted(found, key=_rank):
        if accepted(remedy.layout):
            best.setdefault(tuple(map(str, remedy.changes)), remedy)
    return tuple(_varied(list(best.values()), most))


def _raises(layout: Layout) -> Iterator[Remedy]:
    """Give every stage that cannot hold its weights what it needs."""
    raised = with_weights(layout)
    grown = [(old, new) for old, new in zip(layout.stages, raised.stages, strict=True) if old.budget != new.budget]
    if not grown:
        return
    changes = tuple(Change(new.name, "gpuMemory", old.budget, new.budget) for old, new in grown)
    cost = sum((size_of(raised, new) - size_of(layout, old) for old, new in grown), Fraction(0))
    yield Remedy(Kind.RAISE, "Raise " + ", ".join(map(str, changes)), changes, raised, cost)


def _rank(remedy: Remedy) -> tuple[int, int, Fraction, str]:
    return (remedy.kind, len(remedy.changes), remedy.cost, remedy.title)


def _varied(ranked: list[Remedy], most: int) -> list[Remedy]:
    kept: list[Remedy] = []
    for remedy in ranked:
        if sum(other.kind is remedy.kind for other in kept) < MOST_OF_A_KIND:
            kept.append(remedy)
    return kept[:most]


def _moves(layout: Layout) -> Iterator[Remedy]:
    """Move one stage from a GPU that does not fit to another that the layout has already."""
    for stage, home in _movable(layout):
        for slot in layout.slots:
            if slot not in stage.slots:
                yield _moved(Kind.MOVE, layout, stage, home, slot, f"Move {stage.name} to GPU {slot}")


def _added_slots(layout: Layout) -> Iterator[Remedy]:
    """Give one stage a GPU of its own that the layout does not have yet."""
    new = max(layout.slots, default=-1) + 1
    if new >= MAX_CLAIM_RESULTS:
        return
    for stage, home in _movable(layout):
        yield _moved(Kind.ADD_SLOT, layout, stage, home, new, f"Add GPU {new} and move {stage.name} to it")


def _movable(layout: Layout) -> Iterator[tuple[Stage, int]]:
    """Stages of GPUs with a problem, and the slot that each would leave. Stages of one process stay together."""
    troubled = {problem.slot for problem in check(layout) if problem.severity is not Severity.WARNING}
    alone = {stages[0].name for stages in layout.processes().values() if len(stages) == 1}
    for slot in layout.slots:
        if slot in troubled:
            for stage in layout.uses[slot].stages:
                if stage.name in alone:
                    yield stage, slot


def _moved(kind: Kind, layout: Layout, stage: Stage, home: int, target: int, title: str) -> Remedy:
    slots = tuple(target if slot == home else slot for slot in stage.slots)
    change = Change(stage.name, "gpus", list(stage.slots), list(slots))
    moved = replace(layout, stages=replaced(layout, {stage.name: replace(stage, slots=slots)}))
    return Remedy(kind, title, (change,), moved, size_of(layout, stage))


def _fp8(layout: Layout, floor: Floor, lighter: Lighter) -> Iterator[Remedy]:
    """FP8 weights for a stage that cannot shrink otherwise, its budget lowered by what is missing."""
    if layout.card is None or layout.card.architecture in WITHOUT_FP8:
        return
    for slot in overbooked(layout):
        for stage in layout.uses[slot].stages:
            saved = lighter(stage, layout)
            wanted = largest_fitting_budget(layout, stage)
            if saved is None or wanted is None or stage.budget is None or can_live_on(layout, stage, wanted, floor):
                continue
            lost = stage.budget.bytes_of(layout.card.memory) - wanted.bytes_of(layout.card.memory)
            if lost > saved:
                continue
            lighter_stage = replace(stage, budget=wanted, engine_args={**stage.engine_args, "quantization": "fp8"})
            remedy = changed_remedy(
                Kind.FP8, layout, {stage.name: lighter_stage}, loss_of(stage, wanted), nothing_known
            )
            quantized = Change(stage.name, "engineArgs.quantization", None, "fp8")
            title = f"Use FP8 weights for {stage.name}, which saves {format_bytes(saved)}, and its gpuMemory {wanted}"
            note = "Quantized while it loads; an FP8 checkpoint of the model as spec.model.id loads faster."
            yield replace(remedy, title=title, note=note, changes=(*remedy.changes, quantized))


def _bigger_cards(layout: Layout) -> Iterator[Remedy]:
    """The smallest card of the catalogue on which the declared bytes fit.

    Shares are of the whole card and do not shrink with a bigger one, so each is turned into the bytes it was worth.
    """
    if layout.card is None or not layout.slots:
        return
    card = layout.card
    as_bytes = replace(layout, stages=tuple(_in_bytes(stage, card) for stage in with_weights(layout).stages))
    for card in cards().values():
        if card.memory <= layout.card.memory or "mig" in card.name:
            continue
        grown = replace(as_bytes, card=card)
        if not accepted(grown):
            continue
        changes = [Change("", "gpus.card", layout.card.name, card.name)]
        changes += [
            Change(old.name, "gpuMemory", old.budget, new.budget)
            for old, new in zip(layout.stages, as_bytes.stages, strict=True)
            if old.budget != new.budget
        ]
        title = f"Use a bigger card: {card.name} ({format_bytes(card.memory)})"
        cost = Fraction(card.memory - layout.card.memory, layout.card.memory)
        yield Remedy(Kind.BIGGER_CARD, title, tuple(changes), grown, cost)
        return


def _in_bytes(stage: Stage, card: Card) -> Stage:
    if not isinstance(stage.budget, Share):
        return stage
    return replace(stage, budget=Amount(max(1, stage.budget.bytes_of(card.memory) // MIB) * MIB))
