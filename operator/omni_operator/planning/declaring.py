"""The remedy for stages that declare nothing on a shared GPU: a budget for each, out of what the others leave.

Stages whose size is known get what they need; on each GPU one stage, the biggest engine or the only one of unknown
size, gets the rest, less the usual headroom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from omni_operator.api.quantities import Share
from omni_operator.planning.changes import Change, Floor, Kind, Remedy, replaced
from omni_operator.planning.layout import Layout, SlotUse, Stage
from omni_operator.planning.rules.memory import HEADROOM

STEP = 1000
"""Shares are proposed in steps of 0.1 %."""


def declarations(layout: Layout, floor: Floor) -> Iterator[Remedy]:
    """At most one remedy, for all stages of all GPUs together."""
    missing = {stage.name: stage for use in layout.uses.values() if _shared(use) for stage in use.without_budget}
    if not missing:
        return
    needs = {name: _need(layout, stage, floor) for name, stage in missing.items()}
    growing = {name for use in layout.uses.values() if (name := _growing(use, needs)) is not None}
    if any(need is None and name not in growing for name, need in needs.items()):
        return
    least = Share(Fraction(1, STEP))
    changed = {name: replace(stage, budget=needs[name] or least) for name, stage in missing.items()}
    current = replace(layout, stages=replaced(layout, changed))
    for name in sorted(growing & set(changed)):
        share = _rest(current, changed[name])
        if share > (needs[name] or least).value:
            changed[name] = replace(changed[name], budget=Share(share))
            current = replace(layout, stages=replaced(layout, changed))
    names = [stage.name for stage in layout.stages if stage.name in changed]
    changes = tuple(Change(name, "gpuMemory", None, changed[name].budget) for name in sorted(names))
    listed = ", ".join(f"{change.stage} to {change.new}" for change in changes)
    unknown = sorted(name for name, need in needs.items() if need is None)
    note = f"What {', '.join(unknown)} needs is not known: measure it." if unknown else ""
    yield Remedy(Kind.DECLARE, f"Set gpuMemory of {listed}", changes, current, Fraction(0), note)


def _shared(use: SlotUse) -> bool:
    return use.clients > 1 or bool(use.neighbours)


def _need(layout: Layout, stage: Stage, floor: Floor) -> Share | None:
    """The share that the stage's known need comes to, rounded up."""
    least = floor(stage, layout)
    if least is None or layout.card is None:
        return None
    return Share(min(Fraction(-(-least * STEP // layout.card.memory), STEP), Fraction(1)))


def _growing(use: SlotUse, needs: dict[str, Share | None]) -> str | None:
    """Which stage of a slot takes the rest: the one of unknown size, or else the engine that needs most."""
    open_ones = [stage for stage in use.without_budget if stage.name in needs]
    unknown = [stage.name for stage in open_ones if needs[stage.name] is None]
    if unknown:
        return unknown[0] if len(unknown) == 1 else None
    engines = [stage for stage in open_ones if stage.engine]

    def key(stage: Stage) -> tuple[Fraction, str]:
        need = needs[stage.name]
        return (need.value if need else Fraction(0), stage.name)

    return max(engines, key=key).name if engines else None


def _rest(layout: Layout, stage: Stage) -> Fraction:
    """The biggest share that leaves the usual headroom on each of the stage's GPUs, in whole steps."""
    rooms = []
    for slot in stage.slots:
        use = layout.uses[slot]
        others = use.total - (use.share_of(stage) or 0)
        rooms.append((min(layout.limit, HEADROOM) - others) / stage.copies_per_slot)
    room = min(rooms)
    return Fraction(room.numerator * STEP // room.denominator, STEP)
