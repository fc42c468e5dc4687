"""What people ran into, as verdicts: the public reports whose subject is what a model needs."""

from __future__ import annotations

import pytest

from omni_operator.api.quantities import MIB
from omni_operator.api.reasons import Reason
from omni_operator.catalogue import Card, Component, KvShape, ModelSize, cards, cards_without_memory
from omni_operator.catalogue.shapes import DecoderShape
from omni_operator.catalogue.sizes import weight_bytes
from omni_operator.planning.budget import check
from omni_operator.planning.estimate import Workload, check_estimate, stage_needs
from omni_operator.planning.layout import Layout, Problem, Severity, Stage, refused
from tests.estimate.layouts import QWEN, layout, one_h100, size_of

QWEN_3B = DecoderShape(36, 2048, 16, 2, 128, 11008, 151936, True)
SMALL_OMNI = ModelSize(
    "Qwen/Qwen2.5-Omni-3B",
    {
        "thinker": Component("thinker", weight_bytes(QWEN_3B.parameters, "bf16"), "bf16", QWEN_3B.kv),
        "encoders": Component("encoders", weight_bytes(640_000_000 + 668_000_000, "bf16"), "bf16"),
    },
    {"thinker": ("thinker", "encoders")},
    32768,
    "counted from its shape",
)


def of_thinker(problems: tuple[Problem, ...]) -> list[Problem]:
    return [problem for problem in problems if problem.stages == ("thinker",)]


def thinker(card: Card, share: str) -> Layout:
    return layout("qwen3_omni", "speech", card, {"thinker": share}, only=["thinker"])


def test_d4_a_slice_of_20000_mib_is_not_an_h100() -> None:
    """vllm-omni#469: an "H100" of 20,000 MiB; 0.3 of it is 5.86 GiB, and 8.63 GiB are needed before any KV cache."""
    slice_of_it = Card("a slice of an H100", 20000 * MIB, "NVIDIA H100 80GB HBM3")
    (problem,) = of_thinker(check_estimate(thinker(slice_of_it, "30%"), SMALL_OMNI))
    assert problem.severity is Severity.ERROR
    assert problem.reason is Reason.BUDGET_EXCEEDED
    assert problem.available == 6000 * MIB
    need = stage_needs(thinker(slice_of_it, "30%"), SMALL_OMNI, Workload())["thinker"]
    assert abs(need.fixed / 2**30 - 8.63) < 0.1
    assert "Raise gpuMemory of thinker" in problem.remedy


def test_d4_the_same_share_of_a_true_h100_is_enough() -> None:
    assert not of_thinker(check_estimate(thinker(cards()["h100-80gb"], "30%"), SMALL_OMNI))


def test_d5_two_a100_at_40_percent_must_be_raised() -> None:
    """vllm-omni#240: 30.33 GiB of weights on each rank leave nothing in 31.7 GiB."""
    tried = layout("qwen3_omni", "speech", "a100-80gb", {"thinker": "40%"}, slots={"thinker": (0, 1)})
    (problem,) = of_thinker(check_estimate(tried, size_of(QWEN)))
    assert problem.severity is Severity.ERROR
    assert "on each of its 2 GPUs" in problem.message
    assert "Raise gpuMemory of thinker from 40% to" in problem.remedy
    assert "lowering it makes it worse" in problem.remedy
    need = stage_needs(tried, size_of(QWEN), Workload())["thinker"]
    assert need.ranks == 2
    assert need.weights == size_of(QWEN).components["thinker"].weights / 2


@pytest.mark.parametrize(("share", "flagged"), [("80%", True), ("82.4%", False), ("85%", False), ("88%", False)])
def test_d5_one_h100_is_flagged_at_80_percent_and_passes_from_82_4(share: str, flagged: bool) -> None:
    """sglang-omni#293: 0.80 refuses; 0.824 (automatic), 0.85 and 0.88 start."""
    tried = layout("qwen3_omni", "speech", "h100-80gb", {"thinker": share})
    found = of_thinker(check_estimate(tried, size_of(QWEN)))
    assert bool(found) is flagged
    assert all("Raise" in problem.remedy for problem in found)


def test_d5_lowering_the_share_never_helps() -> None:
    seen = [
        any(p.severity is Severity.ERROR for p in of_thinker(check_estimate(one_h100(f"{share}%"), size_of(QWEN))))
        for share in range(50, 90)
    ]
    assert seen == sorted(seen, reverse=True)


def test_d15_shares_of_a_card_without_a_memory_figure_are_judged_and_amounts_are_not() -> None:
    """KAI-Scheduler#706: a GB10 reports no memory; 0.52 + 0.09 + 0.06 is 0.67 of it all the same."""
    assert "gb10" in cards_without_memory()
    shares = {"thinker": "52%", "talker_ar": "9%", "code2wav": "6%"}
    tried = layout("qwen3_omni", "speech-colocated", None, shares, only=shares)
    assert tried.uses[0].total * 100 == 67
    assert not [p for p in check(tried) if p.severity is Severity.ERROR]
    assert check_estimate(tried, size_of(QWEN)) == ()
    amounts = layout("qwen3_omni", "speech-colocated", None, {"thinker": "62Gi", "talker_ar": "9Gi"}, only=shares)
    assert refused(check(amounts))


def test_a_talker_is_small_enough_for_the_10_percent_that_upstream_gives_it() -> None:
    stage = Stage("talker_ar", "talker_ar", (0,), engine=True)
    need = stage_needs(Layout("qwen3_omni", "speech", (stage,), cards()["h100-80gb"]), size_of(QWEN), Workload())
    assert need["talker_ar"].token == KvShape(20, 2, 128).token_bytes() == 20480
    assert need["talker_ar"].capped < cards()["h100-80gb"].memory / 10
