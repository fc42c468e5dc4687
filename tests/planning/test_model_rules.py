"""What the model needs, at admission: refused where it is certain, otherwise one warning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_operator.api.quantities import MIB, Amount, Budget, parse_budget
from omni_operator.api.reasons import Reason
from omni_operator.catalogue import Card, cards, model_sizes, pipelines
from omni_operator.planning.budget import Verdict, check, verdict
from omni_operator.planning.changes import Kind
from omni_operator.planning.layout import Layout, Problem, Severity, Stage, refused
from omni_operator.planning.remedies import remedies
from tests.planning.layouts import H100, card_of

QWEN = model_sizes()["qwen/qwen3-omni-30b-a3b-instruct"]
GOOD = {"image_encoder": "3%", "audio_encoder": "3%", "thinker": "78%", "talker_ar": "10%", "code2wav": "2%"}


def qwen(card: Card = H100, changes: dict[str, Any] | None = None, **budgets: str | Budget | None) -> Layout:
    """`speech-colocated` with these budgets, and with these fields of its thinker."""
    variant = pipelines()["qwen3_omni"].variants["speech-colocated"]
    shares = {**GOOD, **budgets}

    def stage(default: Any) -> Stage:
        said = shares.get(default.name)
        budget = parse_budget(said) if isinstance(said, str) else said
        more = changes or {} if default.name == "thinker" else {}
        return Stage(default.name, default.name, default.slots, budget, default.engine, **more)

    return Layout("qwen3_omni", variant.name, tuple(stage(s) for s in variant.stages), card, size=QWEN)


def found(layout: Layout, reason: Reason) -> list[Problem]:
    return [problem for problem in check(layout) if problem.reason is reason]


def test_a_budget_below_the_weights_is_refused_and_the_way_out_is_up() -> None:
    (problem,) = found(qwen(thinker="70%"), Reason.BUDGET_EXCEEDED)
    assert (problem.severity, problem.slot, problem.stages) == (Severity.ERROR, 0, ("thinker",))
    assert problem.needed == QWEN.components["thinker"].weights > (problem.available or 0)
    assert "Raise gpuMemory of thinker from 70%" in problem.remedy
    assert "lowering it makes it worse" in problem.remedy


def test_weights_and_a_declared_cache_must_both_fit() -> None:
    assert found(qwen(changes={"kv_cache": 5 * 2**30}), Reason.KV_CACHE_EXCEEDED) == []
    (problem,) = found(qwen(changes={"kv_cache": 6 * 2**30}), Reason.KV_CACHE_EXCEEDED)
    assert problem.message.endswith("cannot hold its weights of 56.8Gi and a KV cache of 6Gi.")


def test_a_card_below_the_weights_is_refused_where_nothing_is_declared() -> None:
    alone = replace(qwen(cards()["l40s"]), stages=(Stage("thinker", "thinker", (0,), engine=True),))
    (problem,) = found(alone, Reason.BUDGET_EXCEEDED)
    assert "a whole l40s" in problem.message
    assert "split thinker over more gpus" in problem.remedy
    assert not refused(check(replace(alone, card=H100)))


@pytest.mark.parametrize("argument", ["quantization", "cpu_offload_gb", "load_format", "dtype"])
def test_arguments_that_change_the_weights_end_the_judgement(argument: str) -> None:
    assert not found(qwen(thinker="70%", changes={"engine_args": {argument: "x"}}), Reason.BUDGET_EXCEEDED)


def test_all_else_is_one_warning_for_all_stages() -> None:
    """The encoders of upstream's own layout have less than their weights and a CUDA context come to."""
    (problem,) = check(qwen(image_encoder="2%", audio_encoder="2%"))
    assert (problem.reason, problem.severity) == (Reason.BUDGET_TIGHT, Severity.WARNING)
    assert problem.stages == ("image_encoder", "audio_encoder", "thinker")
    assert "thinker 78% (8980 of 32768 tokens of KV cache; all at 80.8%)" in problem.message
    assert len(str(problem)) < 300


def test_nothing_is_said_of_a_model_of_unknown_size_or_on_an_unknown_card() -> None:
    assert not refused(check(replace(qwen(thinker="70%"), size=None)))
    assert {problem.reason for problem in check(replace(qwen(thinker="70%"), card=None))} == {Reason.CARD_MISSING}


@pytest.mark.parametrize(("card", "share", "good"), [("h100-80gb", "30%", False), ("h200", "50%", True)])
def test_the_same_share_is_judged_by_the_card(card: str, share: str, good: bool) -> None:
    assert bool(found(qwen(cards()[card], thinker=share), Reason.BUDGET_EXCEEDED)) is not good


def test_the_remedy_raises_what_is_too_small() -> None:
    first = remedies(qwen(thinker="70%"))[0]
    assert (first.kind, str(first.changes[0])) == (Kind.RAISE, "gpuMemory of thinker from 70% to 80.8%")


def test_the_cut_that_a_message_names_leaves_the_weights() -> None:
    overbooked = qwen(talker_ar="30%")
    (problem,) = found(overbooked, Reason.BUDGET_EXCEEDED)
    assert "lower gpuMemory of talker_ar from 30% to 14%" in problem.remedy


BUDGETS = st.one_of(
    st.integers(1, 1000).map(lambda n: f"{n / 10:g}%"), st.integers(1, 150_000).map(lambda n: Amount(n * MIB))
)
SIZED = st.builds(
    lambda mib, shares, kv: qwen(card_of(mib), {"kv_cache": kv and kv * MIB}, **shares),
    st.sampled_from([24564, 46068, 81559, 97871, 143771]),
    st.dictionaries(st.sampled_from(sorted(GOOD)), BUDGETS, max_size=4),
    st.one_of(st.none(), st.integers(1, 90_000)),
)


@settings(max_examples=60, deadline=None)
@given(SIZED)
def test_every_offered_remedy_is_accepted_with_the_models_size_known(layout: Layout) -> None:
    for remedy in remedies(layout):
        assert verdict(check(remedy.layout)) is Verdict.ACCEPTED, remedy.title


@settings(max_examples=60, deadline=None)
@given(SIZED, st.integers(0, 200_000))
def test_a_bigger_card_never_hurts_with_the_models_size_known(layout: Layout, more: int) -> None:
    assert layout.card is not None
    bigger = replace(layout, card=card_of(layout.card.memory // MIB + more))
    assert refused(check(layout)) or not refused(check(bigger))
