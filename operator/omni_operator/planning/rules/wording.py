"""Words that several rules share. Numbers are formatted so that what differs never reads the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from omni_operator.api.quantities import format_bytes, format_percent
from omni_operator.planning.layout import Layout, SlotUse, Stage

STAGES_A_MESSAGE_NAMES = 6


def closest(wrong: str, known: Iterable[str]) -> str | None:
    """What was meant: `h100-80gb` for `h100`, `thinker` for `thinkr`."""
    names = list(known)
    begun = [name for name in names if wrong and name.lower().startswith(wrong.lower())]
    if begun:
        return begun[0]
    import difflib  # Rarely needed, and slow to load.

    return next(iter(difflib.get_close_matches(wrong, names, n=1)), None)


def listed(use: SlotUse) -> str:
    """`thinker 78%, talker_ar 10%`, biggest first, the tail counted."""
    shares = [f"{name} {format_percent(share)}" for name, share in use.shares.items()]
    hidden = len(shares) - STAGES_A_MESSAGE_NAMES
    if hidden > 1:
        shares = [*shares[:STAGES_A_MESSAGE_NAMES], f"{hidden} more"]
    return ", ".join(shares)


def few(names: Sequence[str], most: int) -> str:
    """The first of them, the tail counted."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def others(use: SlotUse, stage: Stage) -> str:
    """Who else is on the slot."""
    return ", ".join(
        [other.name for other in use.stages if other is not stage] + [neighbour.name for neighbour in use.neighbours]
    )


def bytes_needed(share: Fraction, layout: Layout) -> int | None:
    """Bytes of a share of the planned card, rounded up; None where no card is known."""
    return None if layout.card is None else -(-share.numerator * layout.card.memory // share.denominator)


def bytes_available(share: Fraction, layout: Layout) -> int | None:
    """Bytes of a share of the planned card, rounded down; None where no card is known."""
    return None if layout.card is None else share.numerator * layout.card.memory // share.denominator


def quantity(share: Fraction, layout: Layout) -> str:
    """`4% (about 3.2Gi)`."""
    amount = bytes_needed(share, layout)
    return format_percent(share) + (f" (about {format_bytes(amount)})" if amount else "")
