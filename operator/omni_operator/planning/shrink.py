"""How far one stage must shrink for its GPUs to fit: the arithmetic behind messages and remedies. Exact, no float."""

from __future__ import annotations

from fractions import Fraction

from omni_operator.api.quantities import MIB, Amount, Budget, Share
from omni_operator.planning.layout import Layout, Stage

PERCENT_STEP = 10_000
"""Shares are proposed in steps of 0.01 %."""


def room_for(layout: Layout, stage: Stage) -> Fraction | None:
    """The biggest share of the card that one copy of a stage can have with every other stage left as it is.

    May be zero or below, where the others alone fill a GPU. None for a stage on the CPU.
    """
    rooms = []
    for slot in stage.slots:
        use = layout.uses[slot]
        rest = layout.limit - use.total
        own = use.share_of(stage)
        room = rest if own is None else rest + own
        rooms.append(room if stage.copies == 1 else room / stage.copies_per_slot)
    return min(rooms, default=None)


def largest_fitting_budget(layout: Layout, stage: Stage) -> Budget | None:
    """The biggest budget of a stage, in the unit it was declared in, with which all of its GPUs fit.

    Shares are cut down to 0.01 %, amounts to whole MiB. None where nothing above zero would fit.
    """
    room = room_for(layout, stage)
    if room is None:
        return None
    room = min(room, Fraction(1))
    if isinstance(stage.budget, Amount):
        if layout.card is None:
            return None
        amount = room.numerator * layout.card.memory // room.denominator // MIB * MIB
        return Amount(amount) if amount > 0 else None
    share = Fraction(room.numerator * PERCENT_STEP // room.denominator, PERCENT_STEP)
    return Share(share) if share > 0 else None
