"""Remedies: ranked, checked, and words that can be followed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from omni_operator.api.quantities import GIB, MIB, Share
from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.catalogue import cards
from omni_operator.planning.budget import check
from omni_operator.planning.changes import Kind, applied
from omni_operator.planning.layout import Layout, Stage, refused
from omni_operator.planning.remedies import remedies
from omni_operator.planning.resolve import resolve
from tests.planning.layouts import layout, shares, stage

QWEN = {"image_encoder": "2%", "audio_encoder": "2%", "thinker": "88%", "talker_ar": "10%", "code2wav": "2%"}
OVERBOOKED = layout(*(stage(name, 0, share) for name, share in QWEN.items()))


def titles(given: Layout, **more: Any) -> list[str]:
    return [remedy.title for remedy in remedies(given, **more)]


def test_nothing_is_proposed_for_a_layout_that_fits() -> None:
    assert remedies(shares("50%", "40%")) == ()


def test_the_biggest_stage_gives_first_since_it_loses_least_of_itself() -> None:
    assert titles(OVERBOOKED)[0] == "Lower gpuMemory of thinker from 88% to 84%"


def test_mild_remedies_come_before_drastic_ones() -> None:
    kinds = [remedy.kind for remedy in remedies(OVERBOOKED)]
    assert kinds == sorted(kinds)
    assert {Kind.SHRINK, Kind.ADD_SLOT, Kind.BIGGER_CARD} <= set(kinds)


def test_a_floor_keeps_a_stage_from_being_starved() -> None:
    """The thinker's weights are 61.0 GB: on an H100 it cannot go below 71.33 %."""

    def weights(given: Stage, where: Layout) -> int | None:
        return {"thinker": 61 * 10**9, "talker_ar": 7 * 10**9}.get(given.name)

    heavy = layout(stage("thinker", 0, "80%"), stage("talker_ar", 0, "30%"))
    assert titles(heavy, floor=weights)[0] == "Lower gpuMemory of talker_ar from 30% to 20%"
    assert not any("thinker from 80% to 70%" in title for title in titles(heavy, floor=weights))
    assert "thinker from 80% to 70%" in " ".join(titles(heavy))


def test_what_is_not_known_is_said() -> None:
    assert "is not known" in remedies(OVERBOOKED)[0].note
    assert remedies(OVERBOOKED, floor=lambda s, w: 1)[0].note == ""


def test_a_stage_moves_to_a_gpu_that_has_room() -> None:
    given = layout(stage("a", 0, "70%"), stage("b", 0, "50%"), stage("c", 1, "10%"))
    assert "Move b to GPU 1" in titles(given)
    assert "Move a to GPU 1" in titles(given)


def test_a_stage_does_not_move_where_it_would_not_fit() -> None:
    given = layout(stage("a", 0, "70%"), stage("b", 0, "50%"), stage("c", 1, "40%"))
    assert "Move a to GPU 1" not in titles(given)


def test_stages_of_one_process_are_not_torn_apart() -> None:
    given = layout(stage("a", 0, "70%", process="p"), stage("b", 0, "50%", process="p"))
    assert {remedy.kind for remedy in remedies(given)}.isdisjoint({Kind.MOVE, Kind.ADD_SLOT})


def test_two_overbooked_gpus_are_mended_together() -> None:
    given = layout(stage("a", 0, "70%"), stage("b", 0, "50%"), stage("c", 1, "60Gi"), stage("d", 1, "30Gi"))
    best = remedies(given)[0]
    assert best.kind is Kind.SHRINK
    assert {change.stage for change in best.changes} == {"a", "c"}


def test_a_kv_cache_bigger_than_its_budget_is_cut() -> None:
    given = layout(stage("a", 0, "40Gi", kv_cache=41 * GIB))
    assert titles(given)[0] == "Lower kvCache of a from 41Gi to 36Gi"


def test_a_smaller_budget_comes_off_a_declared_kv_cache() -> None:
    given = layout(stage("a", 0, "70Gi", kv_cache=20 * GIB), stage("b", 0, "20Gi"))
    best = next(r for r in remedies(given) if [c.stage for c in r.changes] == ["a", "a"])
    changed = best.layout.stages[0]
    assert changed.kv_cache is not None
    assert changed.budget is not None
    assert 70 * GIB - changed.budget.value == 20 * GIB - changed.kv_cache
    assert changed.budget.value == (81559 - 20 * 1024) * MIB


def test_a_missing_budget_gets_what_the_others_leave_with_headroom() -> None:
    best = remedies(layout(stage("a", 0, "45%"), stage("b", 0)))[0]
    assert (best.kind, best.title) == (Kind.DECLARE, "Set gpuMemory of b to 49%")
    assert check(best.layout) == ()


def test_several_missing_budgets_are_what_is_needed_and_the_biggest_engine_gets_the_rest() -> None:
    def sizes(given: Stage, where: Layout) -> int | None:
        return {"encoder": 1600 * MIB, "thinker": 61 * 10**9, "talker": 7 * 10**9}[given.name]

    given = layout(
        stage("encoder", 0), stage("thinker", 0, engine=True), stage("talker", 0, engine=True), stage("wav", 0, "2%")
    )
    best = remedies(given, floor=sizes)[0]
    assert best.title == "Set gpuMemory of encoder to 2%, talker to 8.2%, thinker to 81.8%"
    assert check(best.layout) == ()
    assert remedies(given) == () or remedies(given)[0].kind is not Kind.DECLARE


def test_a_split_stage_gets_the_least_rest_of_its_gpus() -> None:
    given = layout(stage("thinker", (0, 1), engine=True), stage("a", 0, "10%"), stage("b", 1, "30%"))
    assert titles(given)[0] == "Set gpuMemory of thinker to 64%"


def test_stages_that_may_not_meet_get_gpus_of_their_own() -> None:
    assert titles(shares("40%", "40%", apart=(("s0", "s1"),)))[:2] == [
        "Add GPU 1 and move s0 to it",
        "Add GPU 1 and move s1 to it",
    ]


def test_fp8_is_offered_where_weights_are_known_and_a_stage_cannot_shrink_otherwise() -> None:
    def saving(given: Stage, where: Layout) -> int | None:
        return 30 * 10**9 if given.name == "thinker" else None

    def tight(given: Stage, where: Layout) -> int | None:
        return 74 * 10**9 if given.name == "thinker" else 10**9

    def fp8(given: Layout, **more: Any) -> list[str]:
        return [remedy.title for remedy in remedies(given, **more) if remedy.kind is Kind.FP8]

    assert fp8(OVERBOOKED, lighter=saving) == []
    assert fp8(OVERBOOKED, lighter=saving, floor=tight) == [
        "Use FP8 weights for thinker, which saves 27.9Gi, and its gpuMemory 84%"
    ]
    ampere = replace(OVERBOOKED, card=cards()["a100-80gb"])
    assert fp8(ampere, lighter=saving, floor=tight) == []


def test_a_bigger_card_is_the_smallest_on_which_the_same_bytes_fit() -> None:
    best = next(remedy for remedy in remedies(OVERBOOKED) if remedy.kind is Kind.BIGGER_CARD)
    assert best.layout.card is not None
    assert best.changes[0].old == "h100-80gb"
    thinker = next(s for s in best.layout.stages if s.name == "thinker")
    assert thinker.budget is not None
    assert 0 <= Share(OVERBOOKED.stages[2].budget.value).bytes_of(81559 * MIB) - thinker.budget.value < MIB  # type: ignore[union-attr,arg-type]


def test_changes_can_be_made_in_the_spec_itself() -> None:
    spec = {
        "model": {"id": "Qwen/Qwen3-Omni-30B-A3B-Instruct", "variant": "speech-colocated", "cache": {"emptyDir": {}}},
        "gpus": {"card": "h100-80gb"},
        "stages": [{"name": "thinker", "gpus": [0], "gpuMemory": "88%"}]
        + [{"name": n, "gpuMemory": s} for n, s in QWEN.items() if n != "thinker"],
    }
    overbooked = resolve(OmniModelSpec.model_validate(spec)).layout
    assert overbooked is not None
    offered = remedies(overbooked)
    assert offered
    for remedy in offered:
        mended = resolve(OmniModelSpec.model_validate(applied(spec, remedy.changes))).layout
        assert mended is not None
        assert not refused(check(mended)), remedy.title
    assert spec["stages"][0]["gpuMemory"] == "88%"  # type: ignore[index]
