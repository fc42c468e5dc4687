"""What holds of every estimate."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from omni_operator.api.quantities import MIB, Amount, Share
from omni_operator.catalogue import Card, model_sizes, pipelines
from omni_operator.catalogue.pipelines import known_models
from omni_operator.planning.estimate import Workload, accounts, check_estimate, kv_room, smallest_budget, stage_needs
from omni_operator.planning.layout import Layout, Severity, Stage

sizes = st.sampled_from(sorted(model_sizes()))
cards = st.integers(16_000, 200_000).map(lambda mib: Card(f"{mib}Mi", mib * MIB))
shares = st.integers(1, 1000).map(lambda steps: Share(Fraction(steps, 1000)))
contexts = st.one_of(st.none(), st.integers(1, 200_000))


def a_layout(model: str, card: Card, share: Share | Amount | None) -> Layout:
    """Every stage of the model's default variant that uses a GPU, each with the same budget."""
    pipeline = pipelines()[known_models()[model].pipeline]
    variant = pipeline.variants[known_models()[model].variant or pipeline.default_variant]
    stages = tuple(Stage(stage.name, stage.name, (0,), share, stage.engine) for stage in variant.stages if stage.slots)
    return Layout(pipeline.name, variant.name, stages, card)


def errors(layout: Layout, model: str, workload: Workload) -> int:
    found = check_estimate(layout, model_sizes()[model], workload)
    return sum(problem.severity is Severity.ERROR for problem in found)


@settings(deadline=None)
@given(sizes, cards, shares, contexts, st.integers(1, 50_000))
def test_more_tokens_never_need_less(model: str, card: Card, share: Share, context: int | None, more: int) -> None:
    layout = a_layout(model, card, share)
    less = stage_needs(layout, model_sizes()[model], Workload(context))
    longer = stage_needs(layout, model_sizes()[model], Workload((context or 200_000) + more))
    assert all(longer[name].total >= less[name].total for name in less)


@settings(deadline=None)
@given(sizes, cards, shares, contexts)
def test_a_bigger_card_never_makes_a_share_too_small(model: str, card: Card, share: Share, context: int | None) -> None:
    workload = Workload(context)
    bigger = Card("bigger", card.memory + card.memory // 3)
    if not errors(a_layout(model, card, share), model, workload):
        assert not errors(a_layout(model, bigger, share), model, workload)


@settings(deadline=None)
@given(sizes, cards, shares, contexts, st.integers(0, 500))
def test_a_bigger_share_never_makes_it_worse(
    model: str, card: Card, share: Share, context: int | None, more: int
) -> None:
    bigger = Share(min(Fraction(1), share.value + Fraction(more, 1000)))
    workload = Workload(context)
    assert errors(a_layout(model, card, bigger), model, workload) <= errors(
        a_layout(model, card, share), model, workload
    )


@settings(deadline=None)
@given(sizes, cards, shares, contexts)
def test_percent_and_byte_spellings_of_a_budget_agree(
    model: str, card: Card, share: Share, context: int | None
) -> None:
    size, workload = model_sizes()[model], Workload(context)
    amount = Amount(share.bytes_of(card.memory))
    as_share = check_estimate(a_layout(model, card, share), size, workload)
    as_amount = check_estimate(a_layout(model, card, amount), size, workload)
    assert [(p.reason, p.severity, p.stages, p.needed) for p in as_share] == [
        (p.reason, p.severity, p.stages, p.needed) for p in as_amount
    ]


@settings(deadline=None)
@given(sizes, cards, contexts)
def test_the_advised_share_is_enough_and_no_bigger_than_it_must_be(model: str, card: Card, context: int | None) -> None:
    size, workload = model_sizes()[model], Workload(context)
    layout = a_layout(model, card, None)
    for name, need in stage_needs(layout, size, workload).items():
        share = smallest_budget(need, card)
        if share > 1:
            continue
        stage = replace(next(s for s in layout.stages if s.name == name), budget=Share(share))
        given_it = replace(layout, stages=tuple(stage if s.name == name else s for s in layout.stages))
        assert not [p for p in check_estimate(given_it, size, workload) if p.stages == (name,)]
        assert (share - Fraction(1, 1000)) * card.memory < need.capped


@settings(deadline=None)
@given(sizes, cards, shares, st.sampled_from([1, 2, 4, 8]))
def test_ranks_together_hold_at_least_what_one_holds(model: str, card: Card, share: Share, ranks: int) -> None:
    layout = a_layout(model, card, share)
    split = replace(layout, stages=tuple(replace(s, slots=tuple(range(ranks))) for s in layout.stages))
    whole = stage_needs(layout, model_sizes()[model], Workload())
    parts = stage_needs(split, model_sizes()[model], Workload())
    for name, need in whole.items():
        assert parts[name].weights <= need.weights <= parts[name].weights * ranks
        assert parts[name].token <= need.token <= parts[name].token * ranks


@settings(deadline=None)
@given(sizes, cards, shares)
def test_the_room_for_a_cache_is_what_fits_to_the_token(model: str, card: Card, share: Share) -> None:
    layout, size = a_layout(model, card, share), model_sizes()[model]
    for stage in layout.stages:
        room = kv_room(layout, stage, size)
        if room is None or room.tokens < 1:
            continue
        one = [p for p in check_estimate(layout, size, Workload(room.tokens)) if p.stages == (stage.name,)]
        over = [p for p in check_estimate(layout, size, Workload(room.tokens + 1)) if p.stages == (stage.name,)]
        assert not one
        assert over


@settings(deadline=None)
@given(sizes, cards, contexts)
def test_an_account_adds_up(model: str, card: Card, context: int | None) -> None:
    for account in accounts(a_layout(model, card, None), model_sizes()[model], Workload(context)):
        assert account.needed - account.held_back == sum(line.size or 0 for line in account.lines)
        assert account.missing == max(0, account.needed - card.memory)
