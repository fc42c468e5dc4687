"""The same verdict as sglang-omni 0.1.9's own planner on thousands of generated layouts, save for reasoned differences.

Upstream's planner is the oracle: what it refuses, we refuse; what it accepts, we accept. Where we differ on purpose,
the difference is one of `DIFFERENCES`, worked out here from the plain numbers and not from what our rules say. Needs
sglang-omni without torch (`requirements.txt`); without it the tests are skipped. OMNI_CONTRACT_EXAMPLES sets how many.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_operator.api.quantities import GIB, MIB
from omni_operator.api.reasons import Reason
from omni_operator.planning.budget import check
from omni_operator.planning.layout import Problem, Severity
from tests.contract.placements import Placed, Placements, our_layout, upstream_refusal

pytest.importorskip("sglang_omni", reason="sglang-omni is not installed")

EXAMPLES = int(os.environ.get("OMNI_CONTRACT_EXAMPLES", "20000"))

DIFFERENCES = {
    "tolerance": "Upstream adds floats and forgives 1e-9 of a card; we add exactly.",
    "limit on bytes": "Upstream's limit is for fractions only; ours is for all that a card gives away.",
    "KV against a share": "Upstream compares a KV cache with a byte reserve only; we compare it with a share too.",
    "budget on the CPU": "Upstream ignores the budget of a stage without a GPU; we say that it is a mistake.",
    "float of bytes": "Upstream multiplies a float share with the card, which can be off by less than a byte.",
}
TOLERANCE = Fraction(1, 10**9) + Fraction(1, 10**12)


@dataclass(frozen=True)
class Use:
    """What one GPU is asked for, from the plain numbers."""

    fractions: Fraction
    reserve: int
    kv: int


def use_of(given_placements: Placements, gpu: int) -> Use:
    fractions, reserve, kv = Fraction(0), 0, 0
    for placed in given_placements.stages:
        times = placed.copies_on.count(gpu) if placed.copies_on else placed.gpus.count(gpu)
        fractions += times * Fraction(repr(placed.fraction or 0))
        reserve += times * (placed.reserve or 0)
        kv += times * (placed.kv or 0)
    return Use(fractions, reserve, kv)


def why_only_we_refuse(given_placements: Placements, problem: Problem) -> str | None:
    """The difference by which upstream lets this pass, or None where it should not."""
    stages = {placed.name: placed for placed in given_placements.stages}
    limit, card = Fraction(repr(given_placements.limit)), given_placements.card
    if problem.reason is Reason.BUDGET_INVALID and not stages[problem.stages[0]].gpus:
        return "budget on the CPU"
    if problem.slot is None:
        return None
    use = use_of(given_placements, problem.slot)
    if problem.reason is Reason.KV_CACHE_EXCEEDED and len(problem.stages) == 1 and problem.field.endswith(".kvCache"):
        placed = stages[problem.stages[0]]
        return "KV against a share" if placed.fraction is not None else None
    if problem.reason is Reason.KV_CACHE_EXCEEDED and card is not None:
        return "limit on bytes" if limit * card < use.kv <= card else None
    if problem.reason is not Reason.BUDGET_EXCEEDED:
        return None
    if use.fractions - limit > TOLERANCE:
        return None
    if use.reserve == 0 or card is None:
        return "tolerance"
    whole = use.fractions * card + use.reserve
    return "limit on bytes" if whole <= card or whole - card < 1 else None


def why_only_upstream_refuses(given_placements: Placements, message: str) -> str | None:
    """The difference by which we let this pass, or None where we should not."""
    card = given_placements.card
    if card is None or "declared budgets exceed physical memory" not in message:
        return None
    gpus = {gpu for placed in given_placements.stages for gpu in (*placed.gpus, *placed.copies_on)}
    for use in (use_of(given_placements, gpu) for gpu in gpus):
        if use.reserve and abs(use.fractions * card + use.reserve - card) < 1:
            return "float of bytes"
    return None


FRACTIONS = st.one_of(
    st.integers(1, 100).map(lambda n: n / 100),
    st.integers(1, 20).map(lambda n: n / 20),
    st.integers(1, 1000).map(lambda n: n / 1000),
    st.floats(1e-6, 1.0, exclude_min=True),
    st.sampled_from([0.1, 0.2, 0.3, 1 / 3, 2 / 3, 0.5 + 5e-10, 0.5 + 2e-9, 1.0]),
)
CARDS = st.sampled_from([None, 24564 * MIB, 46068 * MIB, 80 * GIB, 81559 * MIB, 143771 * MIB])
BYTES = st.one_of(st.integers(1, 90).map(lambda n: n * GIB), st.integers(1, 100_000).map(lambda n: n * MIB))


@st.composite
def a_stage(draw: st.DrawFn, name: str) -> Placed:
    gpus = draw(st.sampled_from([(0,), (0,), (0,), (1,), (1,), (2,), (0, 1), (1, 0), (0, 2), ()]))
    process = draw(st.sampled_from([name, name, name, "p", "q"]))
    kind = draw(st.sampled_from(["share", "share", "share", "bytes", "nothing"]))
    copies: tuple[int, ...] = ()
    if len(gpus) == 1 and process == name and draw(st.integers(0, 5)) == 0:
        copies = draw(st.sampled_from([gpus * 2, gpus * 3, (gpus[0], (gpus[0] + 1) % 3)]))
        gpus = copies[:1]
    return Placed(
        name,
        process,
        gpus,
        fraction=draw(FRACTIONS) if kind == "share" else None,
        reserve=draw(BYTES) if kind == "bytes" else None,
        kv=draw(BYTES) if gpus and draw(st.integers(0, 4)) == 0 else None,
        copies_on=copies,
    )


@st.composite
def placements(draw: st.DrawFn) -> Placements:
    count = draw(st.integers(1, 6))
    stages = [draw(a_stage(f"s{i}")) for i in range(count)]
    made = Placements(_renumbered(stages), draw(st.sampled_from([1.0, 1.0, 1.0, 0.94, 0.9, 0.85, 1 / 3])), draw(CARDS))
    return draw(_near_the_edge(made)) if draw(st.booleans()) else made


def _renumbered(stages: list[Placed]) -> tuple[Placed, ...]:
    """Upstream's ids are a machine's and may have gaps; our slots are counted from 0 without."""
    used = sorted({gpu for placed in stages for gpu in (*placed.gpus, *placed.copies_on)})
    number = {gpu: i for i, gpu in enumerate(used)}
    return tuple(
        replace(
            placed,
            gpus=tuple(number[gpu] for gpu in placed.gpus),
            copies_on=tuple(number[gpu] for gpu in placed.copies_on),
        )
        for placed in stages
    )


@st.composite
def _near_the_edge(draw: st.DrawFn, made: Placements) -> Placements:
    """One share is changed so that its GPU is just full, just over, or just below."""
    free = [i for i, placed in enumerate(made.stages) if placed.fraction is not None and len(placed.gpus) == 1]
    free = [i for i in free if not made.stages[i].copies_on]
    if not free:
        return made
    i = draw(st.sampled_from(free))
    use = use_of(made, made.stages[i].gpus[0])
    rest = Fraction(repr(made.limit)) - use.fractions + Fraction(repr(made.stages[i].fraction))
    nudge = draw(st.sampled_from([0, 0, 5e-10, -5e-10, 2e-9, -2e-9, 1e-6, -1e-6, 1e-3, -1e-3]))
    share = float(rest) + nudge
    if not 0 < share <= 1:
        return made
    return replace(made, stages=(*made.stages[:i], replace(made.stages[i], fraction=share), *made.stages[i + 1 :]))


SEEN: Counter[str] = Counter()


@given(placements())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_the_verdict_is_upstreams(given_placements: Placements) -> None:
    ours = [problem for problem in check(our_layout(given_placements)) if problem.severity is Severity.ERROR]
    theirs = upstream_refusal(given_placements)
    if bool(ours) == (theirs is not None):
        SEEN["both refuse" if ours else "both accept"] += 1
        return
    if theirs is None:
        reasons = [why_only_we_refuse(given_placements, problem) for problem in ours]
        assert all(reasons), f"only we refuse: {[str(problem) for problem in ours]}"
    else:
        reasons = [why_only_upstream_refuses(given_placements, theirs)]
        assert all(reasons), f"only upstream refuses: {theirs}"
    SEEN.update({reason for reason in reasons if reason})


def test_the_layouts_were_worth_comparing(capsys: pytest.CaptureFixture[str]) -> None:
    """Both verdicts are common, and every difference in the list is real."""
    if EXAMPLES < 10_000:
        pytest.skip("too few examples for a judgement")
    with capsys.disabled():
        print(f"\n{sum(SEEN.values())} verdicts: {dict(SEEN.most_common())}")
    assert SEEN["both accept"] > EXAMPLES / 20
    assert SEEN["both refuse"] > EXAMPLES / 10
    assert set(SEEN) - {"both accept", "both refuse", "float of bytes"} == set(DIFFERENCES) - {"float of bytes"}


G = GIB


@pytest.mark.parametrize(
    ("stages", "limit", "card", "refused"),
    [
        ([("a", (0,), 0.5), ("b", (0,), 0.3), ("c", (0,), 0.2)], 1.0, None, False),
        ([(f"s{i}", (0,), 0.1) for i in range(10)], 1.0, None, False),
        ([("a", (0,), 0.7), ("b", (0,), 0.4)], 1.0, None, True),
        ([("a", (0,), 0.5), ("b", (0,), 0.41)], 0.9, None, True),
        ([("a", (0,), 0.5), ("b", (0,), None)], 1.0, None, True),
        ([("a", (0,), None), ("b", (1,), None)], 1.0, None, False),
        ([("a", (0, 1), 0.6), ("b", (1,), 0.5)], 1.0, None, True),
        ([("a", (0,), 0.5), ("b", (0,), 40 * G)], 1.0, 80 * G, False),
        ([("a", (0,), 0.6), ("b", (0,), 40 * G)], 1.0, 80 * G, True),
        ([("a", (0,), 0.6), ("b", (0,), 400 * G)], 1.0, None, False),
    ],
)
def test_layouts_worked_out_by_hand(
    stages: list[tuple[str, tuple[int, ...], float | int | None]], limit: float, card: int | None, refused: bool
) -> None:
    made = Placements(
        tuple(
            Placed(
                name,
                name,
                gpus,
                fraction=size if isinstance(size, float) else None,
                reserve=size if isinstance(size, int) else None,
            )
            for name, gpus, size in stages
        ),
        limit,
        card,
    )
    ours = [problem for problem in check(our_layout(made)) if problem.severity is Severity.ERROR]
    assert (upstream_refusal(made) is not None, bool(ours)) == (refused, refused)
