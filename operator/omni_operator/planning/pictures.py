"""What a picture of each card shows: stages to scale, weights and KV cache apart where known, and the free rest.

Pure numbers; how they are drawn, on a terminal or as SVG, is the command line's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from omni_operator.planning.layout import Layout, SlotUse, Stage

Split = Mapping[str, tuple[int, int]]
"""By stage, the bytes on each slot of its weights and of its KV cache, one copy. Others are drawn whole."""


class Fill(StrEnum):
    """What a part of a card is taken by."""

    WHOLE = "whole"
    """A stage's share of which nothing more is known."""
    WEIGHTS = "weights"
    KV_CACHE = "kv"
    OTHER = "other"
    """The rest of a stage's share: activations, workspaces, CUDA's own."""


@dataclass(frozen=True)
class Band:
    """A part of a card. `share` is of the whole card, so all bands of an overbooked one exceed 1."""

    owner: str
    fill: Fill
    share: Fraction


@dataclass(frozen=True)
class SlotPicture:
    """One card."""

    slot: int
    bands: tuple[Band, ...]
    """In pipeline order, what others hold last."""
    total: Fraction
    limit: Fraction
    unknown: tuple[str, ...]
    """Stages that declare nothing."""

    @property
    def free(self) -> Fraction:
        """What is not given away."""
        return max(Fraction(0), 1 - self.total)

    @property
    def owners(self) -> tuple[str, ...]:
        """Stages and neighbours with a band, in order."""
        return tuple(dict.fromkeys(band.owner for band in self.bands))


def pictures(layout: Layout, split: Split | None = None) -> tuple[SlotPicture, ...]:
    """One picture for each slot, rising."""
    return tuple(
        SlotPicture(
            slot,
            tuple(_bands(layout, use, split or {})),
            use.total,
            layout.limit,
            tuple(stage.name for stage in use.without_budget),
        )
        for slot, use in layout.uses.items()
    )


def owners_of(shown: Sequence[SlotPicture]) -> tuple[str, ...]:
    """Everything that has a band on any card, in order."""
    return tuple(dict.fromkeys(owner for picture in shown for owner in picture.owners))


def _bands(layout: Layout, use: SlotUse, split: Split) -> Sequence[Band]:
    bands: list[Band] = []
    for stage in use.stages:
        share = use.share_of(stage)
        if share is not None:
            bands += _stage_bands(layout, stage, share, split)
    stages = {stage.name for stage in use.stages}
    bands += [Band(name, Fill.WHOLE, share) for name, share in use.shares.items() if name not in stages]
    return bands


def _stage_bands(layout: Layout, stage: Stage, share: Fraction, split: Split) -> list[Band]:
    if layout.card is None or (stage.name not in split and stage.kv_cache is None):
        return [Band(stage.name, Fill.WHOLE, share)]
    weights, kv = split.get(stage.name, (0, stage.kv_cache or 0))
    held, cached = (Fraction(size * stage.copies_per_slot, layout.card.memory) for size in (weights, kv))
    rest = share - held - cached
    if rest < 0:  # It needs more than it asks for: the picture shows what it asks for.
        return [Band(stage.name, Fill.WHOLE, share)]
    fill = Fill.OTHER if stage.name in split else Fill.WHOLE
    parts = [(Fill.WEIGHTS, held), (fill, rest), (Fill.KV_CACHE, cached)]
    return [Band(stage.name, fill, part) for fill, part in parts if part]


def apportion(shares: Sequence[Fraction], whole: Fraction, columns: int) -> list[int]:
    """Columns of each share, so that they add up to those of their sum; what is not nothing gets one if any is left.

    By largest remainder, ties to the earlier: the same picture every time.
    """
    if whole <= 0 or columns <= 0:
        return [0] * len(shares)
    exact = [share / whole * columns for share in shares]
    given = [int(value) for value in exact]
    wanted = min(columns, round(sum(exact, Fraction(0))))
    by_remainder = sorted(range(len(shares)), key=lambda i: (given[i] - exact[i], i))
    for i in by_remainder[: max(0, wanted - sum(given))]:
        given[i] += 1
    for i, share in enumerate(shares):
        biggest = max(range(len(shares)), key=lambda k: (given[k], -k))
        if share > 0 and not given[i] and given[biggest] > 1:
            given[i] += 1
            given[biggest] -= 1
    return given
