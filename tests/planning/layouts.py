"""Layouts for tests: short words to build one, and hypothesis strategies for many."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from omni_operator.api.enums import SharingBackend, SharingStrategy
from omni_operator.api.quantities import MIB, Amount, Budget, Share, parse_budget
from omni_operator.catalogue import Card, cards
from omni_operator.planning.layout import Layout, Stage

H100 = cards()["h100-80gb"]


def stage(name: str, slots: tuple[int, ...] | int = 0, budget: str | int | None = None, **more: Any) -> Stage:
    """A stage in a process of its own, on slot 0 unless said."""
    more.setdefault("process", name)
    more.setdefault("path", f"spec.stages[name={name}]")
    where = (slots,) if isinstance(slots, int) else slots
    return Stage(name, slots=where, budget=None if budget is None else parse_budget(budget), **more)


def layout(*stages: Stage, card: Card | None = H100, **more: Any) -> Layout:
    """A layout of a made-up pipeline, on an H100 under MPS unless said."""
    return Layout("made_up", "default", stages, card, **more)


def shares(*percents: str, slot: int = 0, card: Card | None = H100, **more: Any) -> Layout:
    """Stages s0, s1, … that share one slot."""
    return layout(*(stage(f"s{i}", slot, percent) for i, percent in enumerate(percents)), card=card, **more)


def card_of(mib: int) -> Card:
    """A card of that many MiB."""
    return Card(f"card-{mib}", mib * MIB)


SHARES = st.integers(1, 10_000).map(lambda n: Share(Fraction(n, 10_000)))
AMOUNTS = st.integers(1, 200_000).map(lambda n: Amount(n * MIB))
BUDGETS: st.SearchStrategy[Budget] = st.one_of(SHARES, AMOUNTS)


@st.composite
def stages(draw: st.DrawFn, name: str, slots: int = 4) -> Stage:
    """One stage, mostly on one slot, sometimes split, sometimes on the CPU."""
    width = draw(st.sampled_from([1, 1, 1, 1, 2, 0]))
    where = tuple(draw(st.lists(st.integers(0, slots - 1), min_size=width, max_size=width, unique=True)))
    return Stage(
        name=name,
        process=draw(st.sampled_from([name, name, name, "common"])),
        slots=where,
        budget=draw(st.one_of(st.none(), SHARES, AMOUNTS)) if where else None,
        engine=draw(st.booleans()),
        kv_cache=draw(st.one_of(st.none(), st.none(), st.integers(1, 100_000).map(lambda n: n * MIB))),
        copies=draw(st.sampled_from([1, 1, 1, 2])),
        path=f"spec.stages[name={name}]",
    )


@st.composite
def layouts(draw: st.DrawFn, max_stages: int = 6) -> Layout:
    """Layouts of all kinds, most of them wrong somewhere."""
    count = draw(st.integers(1, max_stages))
    return Layout(
        pipeline="made_up",
        variant="default",
        stages=tuple(draw(stages(f"s{i}")) for i in range(count)),
        card=draw(st.one_of(st.none(), st.sampled_from(list(cards().values())), st.integers(1, 200_000).map(card_of))),
        limit=draw(st.sampled_from([Fraction(1), Fraction(94, 100), Fraction(9, 10)])),
        strategy=draw(st.sampled_from([SharingStrategy.MPS, SharingStrategy.TIME_SLICING, SharingStrategy.NONE])),
        backend=draw(st.sampled_from([SharingBackend.DRA, SharingBackend.DRA, SharingBackend.DEVICE_PLUGIN])),
    )


@st.composite
def near_full_layouts(
    draw: st.DrawFn, totals: tuple[int, int] = (80, 130), max_slots: int = 3, parts: tuple[int, int] = (1, 4)
) -> Layout:
    """Layouts that a user might write: slots without gaps, every budget known, a known card, sums near the limit.

    `totals`: percent of a card that the stages of each slot ask for; `parts`: how many stages share a slot.
    """
    made = []
    for slot in range(draw(st.integers(1, max_slots))):
        weights = draw(st.lists(st.integers(5, 60), min_size=parts[0], max_size=parts[1]))
        total = draw(st.integers(*totals))
        for i, weight in enumerate(weights):
            share = min(Fraction(weight * total * 100 // sum(weights), 10_000), Fraction(1))
            name = f"s{slot}{i}"
            made.append(Stage(name, name, (slot,), Share(share), engine=i == 0, path=f"spec.stages[name={name}]"))
    return Layout("made_up", "default", tuple(made), draw(st.sampled_from(list(cards().values()))))
