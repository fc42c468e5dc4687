"""The solver: what it proposes passes the rules, takes the fewest GPUs, and says why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_operator.api.quantities import Share
from omni_operator.api.reasons import Reason
from omni_operator.catalogue import cards, known_models, model_sizes, pipelines
from omni_operator.planning.budget import check
from omni_operator.planning.estimate import Workload, check_estimate
from omni_operator.planning.layout import Layout, Neighbour, Severity, Stage
from omni_operator.planning.solve import Goal, Solution, Unsolved, solve, solve_any, talker_of
from tests.estimate.layouts import QWEN, layout, size_of

H100 = cards()["h100-80gb"]
VIDEO = Workload(context=32768)
EVERY = [(name, variant) for name, pipeline in pipelines().items() for variant in pipeline.variants]


def solved(found: Solution | Unsolved) -> Solution:
    assert isinstance(found, Solution), found
    return found


def slots(found: Solution) -> Mapping[str, tuple[int, ...]]:
    return {placement.stage: placement.slots for placement in found.placements}


def percent(found: Solution, stage: str) -> Fraction:
    return next(placement.budget.value for placement in found.placements if placement.stage == stage) * 100


def qwen(variant: str = "speech") -> Layout:
    return layout("qwen3_omni", variant, None, {"code2wav": None, "mm_aggregate": "0.5%"})


def test_video_takes_two_h100_and_the_layout_is_upstreams_own() -> None:
    found = solved(solve(qwen(), size_of(QWEN), H100, workload=VIDEO))
    assert slots(found) == {
        "image_encoder": (0,), "audio_encoder": (0,), "thinker": (0,), "talker_ar": (1,), "code2wav": (0,),
    }  # fmt: skip
    assert "Stages are together and apart as upstream's own layout has them." in found.reasons
    assert "Takes 2 GPUs; no packing takes fewer." in found.reasons
    assert percent(found, "thinker") > 78


def test_all_stages_fit_one_h20_and_one_h200() -> None:
    for name in ("h20", "h200"):
        assert solved(solve(qwen("speech-colocated"), size_of(QWEN), cards()[name], workload=VIDEO)).gpus == 1


def test_fp8_fits_one_h100() -> None:
    size = size_of("marksverdhei/Qwen3-Omni-30B-A3B-FP8")
    found = solved(solve(qwen("speech-colocated"), size, H100, workload=VIDEO))
    assert found.gpus == 1


def test_a_variant_that_upstream_keeps_on_one_gpu_is_not_spread() -> None:
    found = solve(qwen("speech-colocated"), size_of(QWEN), H100, workload=VIDEO)
    assert isinstance(found, Unsolved)
    assert found.problem.reason is Reason.BUDGET_EXCEEDED
    assert "another variant than speech-colocated" in found.problem.remedy
    assert "thinker 80.9%" in found.problem.message


def test_the_best_variant_is_chosen() -> None:
    both = [qwen("speech-colocated"), qwen("speech")]
    assert solved(solve_any(both, size_of(QWEN), [H100], workload=VIDEO)).layout.variant == "speech"
    chosen = solved(solve_any(both, size_of(QWEN), [H100, cards()["h20"], cards()["h200"]], workload=VIDEO))
    assert (chosen.gpus, chosen.layout.variant) == (1, "speech-colocated")
    assert chosen.layout.card == cards()["h20"]
    with pytest.raises(ValueError, match="no layouts or cards"):
        solve_any([], None, [])


def test_cards_of_24_gb_split_the_thinker() -> None:
    found = solved(solve(qwen(), size_of(QWEN), cards()["rtx-4090"], workload=VIDEO))
    assert len(slots(found)["thinker"]) == 4
    assert found.gpus == 4, "upstream lets the talker meet a thinker that is split"
    assert all(use.total <= Fraction(94, 100) for use in found.layout.uses.values())
    assert "split over 4 GPUs" in next(p.reason for p in found.placements if p.stage == "thinker")


def test_for_the_first_sound_the_talker_is_alone_and_code2wav_rides_with_the_thinker() -> None:
    found = solved(solve(qwen(), size_of(QWEN), cards()["h200"], goal=Goal.FIRST_SOUND, workload=VIDEO))
    placed = slots(found)
    alone = placed["talker_ar"]
    assert [name for name, where in placed.items() if set(where) & set(alone)] == ["talker_ar"]
    assert placed["code2wav"] == placed["thinker"]
    assert any("talker_ar is alone" in reason for reason in found.reasons)


def test_without_a_talker_the_goal_changes_nothing() -> None:
    few = solved(solve(qwen("text"), size_of(QWEN), H100, workload=VIDEO))
    fast = solved(solve(qwen("text"), size_of(QWEN), H100, goal=Goal.FIRST_SOUND, workload=VIDEO))
    assert talker_of(qwen("text")) is None
    assert fast.placements == few.placements
    assert talker_of(qwen()) == "talker_ar"


def test_what_is_proposed_holds_the_workload() -> None:
    found = solved(solve(qwen(), size_of(QWEN), H100, workload=VIDEO))
    assert check_estimate(found.layout, size_of(QWEN), VIDEO) == ()
    assert [p.severity for p in check(found.layout) if p.severity is not Severity.WARNING] == []


def test_more_requests_take_more_gpus() -> None:
    few = solved(solve(qwen("text"), size_of(QWEN), H100, workload=Workload(32768, 1)))
    many = solved(solve(qwen("text"), size_of(QWEN), H100, workload=Workload(32768, 16)))
    assert few.gpus < many.gpus


def test_a_stage_of_which_nothing_is_known_is_asked_for() -> None:
    found = solve(layout("moss_tts", "default", None, {"vocoder": None}), None, H100)
    assert isinstance(found, Unsolved)
    assert found.problem.reason is Reason.BUDGET_UNKNOWN
    assert found.problem.severity is Severity.QUESTION


def test_what_others_hold_of_a_card_is_left_alone() -> None:
    tried = replace(qwen("text"), neighbours=(Neighbour("other", 0, Share(Fraction(1, 2))),))
    found = solve(tried, size_of(QWEN), H100, 2, workload=VIDEO)
    placed = slots(solved(found))
    assert placed["thinker"] == (1,) or set(placed["thinker"]) == {0, 1}
    assert not [p for p in check(solved(found).layout) if p.severity is Severity.ERROR]


def test_copies_go_together_and_each_has_its_share() -> None:
    tried = layout("higgs_tts", "default", None, {}, only=["tts_engine"], copies=3)
    found = solved(solve(tried, size_of("bosonai/higgs-tts-3-4b"), H100, workload=Workload(100_000)))
    assert found.gpus == 1
    assert percent(found, "tts_engine") * 3 <= 94


@pytest.mark.parametrize(("name", "variant"), EVERY, ids=lambda value: str(value))
def test_every_entry_is_solved_well_under_a_second(name: str, variant: str) -> None:
    found = pipelines()[name].variants[variant]
    tried = layout(name, variant, None, {stage.name: "30%" for stage in found.stages if stage.slots})
    started = time.perf_counter()
    for share in ("30%", "90%"):
        budgets = {stage.name: share for stage in found.stages if stage.slots}
        tried = layout(name, variant, None, budgets)
        for goal in Goal:
            result = solve(tried, None, H100, 8, goal)
            if isinstance(result, Solution):
                assert not [p for p in check(result.layout) if p.severity is Severity.ERROR]
                assert result.gpus <= 8
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("model", sorted(model_sizes()))
def test_every_known_model_is_solved_on_every_card_well_under_a_second(model: str) -> None:
    size, known = model_sizes()[model], known_models()[model]
    pipeline = pipelines()[known.pipeline]
    variant = known.variant or pipeline.default_variant
    found = pipeline.variants[variant]
    unknown = {s.name: "1%" for s in found.stages if s.slots and s.name not in size.stages}
    tried = layout(known.pipeline, variant, None, {s.name: None for s in found.stages} | unknown)
    for card in cards().values():
        started = time.perf_counter()
        result = solve(tried, size, card, 8)
        assert time.perf_counter() - started < 0.5
        if isinstance(result, Solution):
            assert not [p for p in check(result.layout) if p.severity is Severity.ERROR]
            assert all(use.total <= Fraction(94, 100) for use in result.layout.uses.values())


def fewest_by_trying_all(sizes: list[int], apart: tuple[tuple[int, int], ...], most: int) -> int | None:
    """GPUs that stages of so many tenths of a percent take at least, by trying every placement."""
    for count in range(1, most + 1):
        for placed in product(range(count), repeat=len(sizes)):
            full = any(sum(s for s, p in zip(sizes, placed, strict=True) if p == slot) > 940 for slot in range(count))
            if not full and not any(placed[a] == placed[b] for a, b in apart):
                return count
    return None


@settings(deadline=None, max_examples=120)
@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=2),
    st.integers(1, 4),
)
def test_no_packing_takes_fewer(sizes: list[int], pairs: list[tuple[int, int]], most: int) -> None:
    apart = tuple((a, b) for a, b in pairs if a < b < len(sizes))
    stages = tuple(Stage(f"s{n}", f"s{n}", (0,), Share(Fraction(size, 1000))) for n, size in enumerate(sizes))
    tried = Layout("none", "none", stages, apart=tuple((f"s{a}", f"s{b}") for a, b in apart))
    found = solve(tried, None, H100, most)
    wanted = fewest_by_trying_all(sizes, apart, most)
    assert (found.gpus if isinstance(found, Solution) else None) == wanted
    if isinstance(found, Solution):
        assert not [p for p in check(found.layout) if p.severity is Severity.ERROR]
        assert all(use.total <= Fraction(94, 100) for use in found.layout.uses.values())


@settings(deadline=None, max_examples=40)
@given(st.permutations(range(5)), st.sampled_from(list(Goal)), st.sampled_from(["h100-80gb", "h200", "l40s"]))
def test_the_order_of_stages_does_not_change_how_many_gpus_it_takes(order: list[int], goal: Goal, card: str) -> None:
    base = qwen()
    on_gpu = [stage for stage in base.stages if stage.slots]
    shuffled = replace(base, stages=tuple(on_gpu[n] for n in order))
    first = solve(replace(base, stages=tuple(on_gpu)), size_of(QWEN), cards()[card], goal=goal, workload=VIDEO)
    second = solve(shuffled, size_of(QWEN), cards()[card], goal=goal, workload=VIDEO)
    assert solved(first).gpus == solved(second).gpus
    assert solve(shuffled, size_of(QWEN), cards()[card], goal=goal, workload=VIDEO) == second
