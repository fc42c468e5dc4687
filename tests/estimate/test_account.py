"""The account of SGLang-Omni's "Sharing GPUs": where the memory of one H100 goes, and why video misses by 2.1 GB."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from omni_operator.api.enums import SharingStrategy
from omni_operator.api.quantities import Share, parse_budget
from omni_operator.api.reasons import Reason
from omni_operator.catalogue import Card, cards
from omni_operator.planning.estimate import (
    PartKind,
    Workload,
    accounts,
    cards_that_fit,
    check_estimate,
    engine_headroom,
    kv_room,
    room_for,
    stage_needs,
)
from omni_operator.planning.estimate_need import CUDA_CONTEXT
from omni_operator.planning.layout import Layout, Neighbour, Problem, Severity
from tests.estimate.layouts import QWEN, one_h100, size_of, with_budget

GB = 10**9
ROUNDING = 32768 * (98304 - 96000)
"""The account counts 96 KB a token as 96,000 bytes; exactly they are 96 KiB."""


def gb(value: int) -> str:
    return f"{value / GB:.1f}"


def test_weights_and_cache_are_those_of_the_account() -> None:
    needs = stage_needs(one_h100(None), size_of(QWEN), Workload(context=32768))
    assert gb(needs["thinker"].weights) == "61.0"
    assert gb(needs["talker_ar"].weights) == "6.6"
    assert abs(size_of(QWEN).weights - 70.5 * GB) < 0.1 * GB
    assert needs["thinker"].token == 96 * 1024
    assert gb(needs["thinker"].of(PartKind.KV_CACHE) - ROUNDING) == "3.1"


@pytest.mark.parametrize(("card", "needed"), [(80, "85.7"), (85, "87.1")])
def test_video_on_one_h100_needs_what_the_account_says(card: int, needed: str) -> None:
    (account,) = accounts(one_h100(None, Card("counted", card * GB)), size_of(QWEN))
    assert gb(account.needed - ROUNDING) == needed
    assert account.missing == account.needed - card * GB


def test_video_misses_by_2_1_gb() -> None:
    (account,) = accounts(one_h100(None, Card("as PyTorch reports", 85 * GB)), size_of(QWEN))
    assert gb(account.missing - ROUNDING) == "2.1"
    (problem,) = [p for p in check_estimate(one_h100(None), size_of(QWEN)) if p.severity is Severity.ERROR]
    assert problem.reason is Reason.BUDGET_EXCEEDED
    assert problem.slot == 0
    assert "GPU 0 is too small" in problem.message
    assert "thinker 63.8Gi" in problem.message
    assert "too many" in problem.message


def test_speech_synthesis_fits_at_78_percent_and_video_does_not() -> None:
    layout = one_h100("78%", Card("counted", 80 * GB))
    budget = layout.stages[3].budget
    assert budget is not None
    assert gb(budget.bytes_of(80 * GB)) == "62.4"
    layout = one_h100("78%")
    assert not _errors(layout, Workload(context=2048))
    (video,) = _errors(layout, Workload(context=32768))
    assert video.reason is Reason.KV_CACHE_EXCEEDED
    assert video.stages == ("thinker",)
    assert "Raise gpuMemory of thinker from 78% to 80.8%" in video.remedy


def test_the_models_own_limit_only_warns() -> None:
    problems = check_estimate(one_h100("78%"), size_of(QWEN))
    thinker = [problem for problem in problems if problem.stages == ("thinker",)]
    assert [problem.severity for problem in thinker] == [Severity.WARNING]
    assert [problem.reason for problem in thinker] == [Reason.BUDGET_TIGHT]


def test_a_message_says_where_the_memory_goes() -> None:
    (problem,) = _errors(one_h100("70%"), Workload(context=2048))
    assert problem.needed is not None
    assert problem.available is not None
    assert problem.needed > problem.available
    assert "cannot even hold its weights" in problem.message
    for part in ("weights 56.8Gi", "KV cache 192Mi", "encoder reserve", "CUDA context 522Mi"):
        assert part in problem.message
    assert problem.field.endswith("gpuMemory")


def test_the_reserve_is_left_only_beside_encoders_and_as_large_as_was_said() -> None:
    layout = one_h100("78%")
    thinker = layout.stages[3]
    assert stage_needs(layout, size_of(QWEN), Workload())["thinker"].of(PartKind.ENCODER_RESERVE) > 0
    lower = replace(thinker, engine_args={"encoder_mem_reserve": 0.045})
    changed = replace(layout, stages=tuple(lower if s is thinker else s for s in layout.stages))
    card = cards()["h100-80gb"].memory
    reserve = stage_needs(changed, size_of(QWEN), Workload())["thinker"].of(PartKind.ENCODER_RESERVE)
    assert reserve == -(-card * 45 // 1000)
    alone = replace(layout, stages=(replace(thinker, slots=(1,)), layout.stages[1]))
    assert stage_needs(alone, size_of(QWEN), Workload())["thinker"].of(PartKind.ENCODER_RESERVE) == 0


def test_longest_request_and_most_requests_come_from_the_same_room() -> None:
    layout = one_h100("85%")
    room = kv_room(layout, layout.stages[3], size_of(QWEN))
    assert room is not None
    assert room.token == 98304
    assert room.context(requests=2) == room.tokens // 2
    assert room.requests(context=13769) == room.tokens // 13769 >= 4
    fits, over = (_errors(layout, Workload(context=room.tokens + more)) for more in (0, 1))
    assert "thinker" not in {name for problem in fits for name in problem.stages}
    assert "thinker" in {name for problem in over for name in problem.stages}


def test_without_a_budget_the_room_is_what_the_rest_of_the_card_leaves() -> None:
    room = room_for(one_h100(None), "thinker", size_of(QWEN))
    assert room is not None
    assert 0 <= room.tokens < 32768
    bigger = room_for(one_h100(None, "h200"), "thinker", size_of(QWEN))
    assert bigger is not None
    assert bigger.tokens > 32768
    assert room_for(one_h100(None), "code2wav", size_of(QWEN)) is None


def test_cards_that_fit_video_are_the_h20_and_bigger_ones() -> None:
    fits = {fit.card.name for fit in cards_that_fit(one_h100(None), size_of(QWEN), Workload(context=32768)) if fit.fits}
    assert {"h20", "h200", "b200"} <= fits
    assert not fits & {"h100-80gb", "a100-80gb", "l40s", "rtx-4090"}


def test_fp8_weights_fit_one_h100_with_room_for_video() -> None:
    layout = with_budget(one_h100("55%"), "talker_ar", "12%")
    size = size_of("marksverdhei/Qwen3-Omni-30B-A3B-FP8")
    assert not [p for p in check_estimate(layout, size, Workload(context=32768)) if p.severity is Severity.ERROR]


def test_a_declared_cache_is_taken_as_it_is() -> None:
    layout = one_h100("78%")
    stages = tuple(replace(s, kv_cache=10 * 2**30) if s.name == "thinker" else s for s in layout.stages)
    (problem,) = _errors(replace(layout, stages=stages), Workload())
    assert "KV cache 10Gi" in problem.message
    small = tuple(replace(s, kv_cache=2**29) if s.name == "thinker" else s for s in layout.stages)
    room = kv_room(replace(layout, stages=small), small[3], size_of(QWEN))
    assert room is not None
    assert room.size == 2**29


def test_amounts_are_advised_in_amounts() -> None:
    (problem,) = _errors(with_budget(one_h100("78%"), "thinker", "60Gi"), Workload(context=32768))
    assert "from 60Gi to 65" in problem.remedy
    assert problem.remedy.split(" to ")[1].startswith(f"{-(-(problem.needed or 0) // 2**20)}Mi")


def test_relay_buffers_and_kv_dtype_count() -> None:
    plain = stage_needs(one_h100("78%"), size_of(QWEN), Workload())["thinker"]
    other = stage_needs(one_h100("78%"), size_of(QWEN), Workload(relay=2**30, kv_dtype="fp8"))["thinker"]
    assert other.of(PartKind.RELAY) == 2**30
    assert other.token == Fraction(plain.token, 2)


def test_without_a_card_nothing_is_said() -> None:
    layout = replace(one_h100("78%"), card=None)
    assert accounts(layout, size_of(QWEN)) == ()
    assert check_estimate(layout, size_of(QWEN)) == ()


@pytest.mark.parametrize("wrong", [{"context": 0}, {"requests": 0}, {"relay": -1}])
def test_a_workload_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        Workload(**wrong)


def _errors(layout: Layout, workload: Workload) -> list[Problem]:
    return [p for p in check_estimate(layout, size_of(QWEN), workload) if p.severity is Severity.ERROR]


def test_what_a_neighbour_holds_is_in_the_account() -> None:
    layout = replace(one_h100("60%"), neighbours=(Neighbour("other", 0, Share(Fraction(1, 4))), Neighbour("third", 0)))
    (account,) = accounts(layout, size_of(QWEN))
    lines = {line.stage: line.size for line in account.lines}
    assert lines["other"] == account.card // 4
    assert account.unknown == ("third",)
    assert account.missing > 0


def test_bytes_and_tokens_of_the_account_are_whole_numbers() -> None:
    for need in stage_needs(one_h100("78%"), size_of(QWEN), Workload()).values():
        assert all(type(part.size) is int for part in need.parts)
        assert need.token.denominator == 1


class TestHeadroomUnderMps:
    """MPS ends a process at its budget, CUDA's own memory and its graphs included: the engine gets a smaller share."""

    def headroom(self, name: str = "talker_ar", budget: str = "10%", **changes: object) -> int:
        layout = one_h100(None)
        stages = tuple(
            replace(stage, budget=parse_budget(budget)) if stage.name == name else stage for stage in layout.stages
        )
        found = replace(layout, stages=stages, strategy=SharingStrategy.MPS, size=size_of(QWEN))
        found = replace(found, **changes)  # type: ignore[arg-type]
        return engine_headroom(found, next(stage for stage in found.stages if stage.name == name))

    def test_a_context_and_six_hundredths_of_the_weights(self) -> None:
        weights = stage_needs(one_h100(None), size_of(QWEN), Workload())["talker_ar"].weights
        assert self.headroom() == CUDA_CONTEXT + -(-weights * 6 // 100)

    def test_what_is_left_to_encoders_is_room_enough(self) -> None:
        assert self.headroom("thinker", "78%") == CUDA_CONTEXT

    def test_of_an_unknown_model_six_hundredths_of_the_budget(self) -> None:
        budget = parse_budget("10%").bytes_of(cards()["h100-80gb"].memory)
        assert self.headroom(size=None) == CUDA_CONTEXT + -(-budget * 6 // 100)

    @pytest.mark.parametrize("strategy", [SharingStrategy.TIME_SLICING, SharingStrategy.NONE])
    def test_nothing_where_nothing_ends_the_process(self, strategy: SharingStrategy) -> None:
        assert self.headroom(strategy=strategy) == 0

    def test_nothing_where_the_cache_is_given_in_bytes_or_nothing_else_is_on_the_gpu(self) -> None:
        layout = one_h100(None)
        talker = next(stage for stage in layout.stages if stage.name == "talker_ar")
        declared = replace(talker, budget=parse_budget("10%"), kv_cache=GB)
        assert self.headroom(stages=(declared, layout.stages[1])) == 0
        assert self.headroom(stages=(replace(declared, kv_cache=None),)) == 0

    def test_the_room_for_a_cache_is_what_the_engine_is_given(self) -> None:
        layout = replace(one_h100(None), strategy=SharingStrategy.MPS, size=size_of(QWEN))
        talker = replace(next(s for s in layout.stages if s.name == "talker_ar"), budget=parse_budget("10%"))
        layout = replace(layout, stages=tuple(talker if s.name == talker.name else s for s in layout.stages))
        room = kv_room(layout, talker, size_of(QWEN))
        assert room is not None
        card = cards()["h100-80gb"].memory
        given = talker.budget.bytes_of(card) - engine_headroom(layout, talker)  # type: ignore[union-attr]
        assert room.size == given - stage_needs(layout, size_of(QWEN), Workload())["talker_ar"].weights
