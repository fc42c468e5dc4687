"""What must hold for every layout, whatever its numbers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from omni_operator.api.quantities import MIB, Amount, Share
from omni_operator.api.reasons import Reason
from omni_operator.planning.budget import REFUSING, WARNING, Verdict, accepted, check, verdict
from omni_operator.planning.layout import Layout, Problem, Severity, Stage, refused
from omni_operator.planning.remedies import remedies
from tests.planning.layouts import BUDGETS, card_of, layouts, near_full_layouts, stages

QUICK = settings(max_examples=60, deadline=None)
"""A busy machine is slow, and that is no failure."""


def signature(problems: tuple[Problem, ...]) -> list[tuple[object, ...]]:
    return sorted(
        (p.severity, p.reason, -1 if p.slot is None else p.slot, p.needed or 0, p.available or 0) for p in problems
    )


@QUICK
@given(layouts())
def test_any_layout_gets_a_verdict_and_every_problem_says_something(given_layout: Layout) -> None:
    problems = check(given_layout)
    assert verdict(problems) in Verdict
    for problem in problems:
        assert problem.message.endswith(".")
        assert problem.field
        if problem.reason is Reason.BUDGET_EXCEEDED and problem.needed is not None:
            assert problem.available is not None
            assert problem.needed > problem.available


@QUICK
@given(st.one_of(layouts(), near_full_layouts()), stages("added"))
def test_adding_a_stage_never_turns_a_refusal_into_an_acceptance(given_layout: Layout, added: Stage) -> None:
    """But for a slot that was skipped and is now used: that is what was asked for."""
    problems = check(given_layout)
    assume(refused(problems))
    assume(all(problem.reason is not Reason.SLOT_SKIPPED for problem in problems))
    assert refused(check(replace(given_layout, stages=(*given_layout.stages, added))))


@QUICK
@given(st.one_of(layouts(), near_full_layouts((30, 100))), st.integers(0, 200_000))
def test_a_bigger_card_never_turns_an_acceptance_into_a_refusal(given_layout: Layout, more: int) -> None:
    assume(given_layout.card is not None and not refused(check(given_layout)))
    assert given_layout.card is not None
    bigger = card_of(given_layout.card.memory // MIB + 1 + more)
    assert not refused(check(replace(given_layout, card=bigger)))


@QUICK
@given(st.one_of(layouts(), near_full_layouts()), st.randoms(use_true_random=False))
def test_the_order_of_stages_never_matters(given_layout: Layout, random: object) -> None:
    shuffled = list(given_layout.stages)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = replace(given_layout, stages=tuple(shuffled))
    assert signature(check(other)) == signature(check(given_layout))


@QUICK
@given(st.one_of(layouts(), near_full_layouts()), st.randoms(use_true_random=False))
def test_the_order_of_stages_never_changes_what_is_offered(given_layout: Layout, random: object) -> None:
    shuffled = list(given_layout.stages)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = replace(given_layout, stages=tuple(shuffled))
    assert [r.title for r in remedies(other)] == [r.title for r in remedies(given_layout)]


@QUICK
@given(st.one_of(layouts(), near_full_layouts((101, 150))))
def test_every_offered_remedy_applied_is_accepted(given_layout: Layout) -> None:
    offered = remedies(given_layout)
    assert not offered or refused(check(given_layout))
    for remedy in offered:
        assert not refused(check(remedy.layout)), remedy.title
        assert {stage.name for stage in remedy.layout.stages} == {stage.name for stage in given_layout.stages}
        assert remedy.changes


@QUICK
@given(near_full_layouts((101, 130), max_slots=1, parts=(2, 3)))
def test_one_overbooked_gpu_is_always_offered_something(given_layout: Layout) -> None:
    """Where a stage is not alone, it can at least have a GPU of its own or a smaller share."""
    if refused(check(given_layout)):
        assert remedies(given_layout)


@QUICK
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 1000)), min_size=1, max_size=6), st.integers(1, 200))
def test_percent_and_byte_spellings_of_the_same_share_agree(parts: list[tuple[int, int]], thousands: int) -> None:
    """On a card of a whole thousand MiB, every tenth of a percent is a whole number of bytes."""
    card = card_of(thousands * 1000)
    as_shares = tuple(Stage(f"s{i}", f"s{i}", (slot,), Share(Fraction(n, 1000))) for i, (slot, n) in enumerate(parts))
    as_bytes = tuple(
        replace(stage, budget=Amount(stage.budget.bytes_of(card.memory))) for stage in as_shares if stage.budget
    )
    one = check(Layout("p", "v", as_shares, card))
    other = check(Layout("p", "v", as_bytes, card))
    assert signature(one) == signature(other)


@QUICK
@given(near_full_layouts((30, 100)), BUDGETS)
def test_a_smaller_budget_never_hurts(given_layout: Layout, budget: Share | Amount) -> None:
    assume(not refused(check(given_layout)))
    assert given_layout.card is not None
    first = given_layout.stages[0]
    assert first.budget is not None
    assume(budget.bytes_of(given_layout.card.memory) <= first.budget.bytes_of(given_layout.card.memory))
    smaller = replace(given_layout, stages=(replace(first, budget=budget), *given_layout.stages[1:]))
    assert not refused(check(smaller))


@QUICK
@given(layouts())
def test_rules_keep_to_their_kind_and_the_short_way_says_the_same(given_layout: Layout) -> None:
    for rules, warns in ((REFUSING, False), (WARNING, True)):
        found = [problem for rule in rules for problem in rule(given_layout)]
        assert all((problem.severity is Severity.WARNING) is warns for problem in found)
    assert accepted(given_layout) is not refused(check(given_layout))


@QUICK
@given(layouts())
def test_strict_refuses_whatever_had_a_warning(given_layout: Layout) -> None:
    plain = check(given_layout)
    strict = check(given_layout, strict=True)
    assert len(plain) == len(strict)
    assert all(problem.severity is not Severity.WARNING for problem in strict)
    assert refused(strict) == bool(plain)
