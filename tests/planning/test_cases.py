"""What people ran into, as expectations: each public report about planning or units, and its kind.

The issue or file that a case comes from stands in its docstring; figures are those of the report.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from omni_operator.api.enums import SharingBackend, SharingStrategy
from omni_operator.api.quantities import GIB, MIB, QuantityError, parse_budget
from omni_operator.api.reasons import Reason
from omni_operator.planning.budget import Verdict, check, verdict
from omni_operator.planning.layout import DevicePlugin, Layout, Neighbour, Severity
from tests.planning.layouts import card_of, layout, shares, stage

H200 = card_of(143155)
"""139.8 GiB."""


def reasons(given: Layout) -> set[Reason]:
    return {problem.reason for problem in check(given)}


class TestEqualFractionsUnequalReplicas:
    """sglang-omni#921, #1037, #1400: `mem_fraction_static` is of free memory, so the first replica took the most."""

    def test_eight_replicas_at_085_are_not_a_sum_of_68(self) -> None:
        replicas = [stage(f"r{i}", 0, engine=True, engine_args={"mem_fraction_static": 0.85}) for i in range(8)]
        found = check(layout(*replicas))
        assert {problem.reason for problem in found} == {Reason.BUDGET_UNKNOWN}
        assert verdict(found) is Verdict.UNDECIDED
        assert all(problem.field.endswith(".gpuMemory") for problem in found)

    def test_two_replicas_without_a_common_cap_are_a_warning(self) -> None:
        assert reasons(layout(stage("tts", 0, "30%", engine=True, copies=2))) == {Reason.COPIES_UNCAPPED}

    @pytest.mark.parametrize("cap", [{"kv_cache": 8 * GIB}, {"engine_args": {"max_total_tokens": 30_000}}])
    def test_with_a_common_cap_they_are_clean(self, cap: dict[str, object]) -> None:
        assert check(layout(stage("tts", 0, "30%", engine=True, copies=2, **cap))) == ()


class TestNeighbourWithoutABudget:
    """vllm-omni#1842, #1574, #1268, deploy/bagel.yaml: an undeclared diffusion stage took 26.47 GiB of an H200."""

    def test_an_undeclared_stage_on_a_shared_gpu_is_refused(self) -> None:
        assert reasons(layout(stage("ar", 0, "95%"), stage("dit", 0), card=H200)) >= {Reason.BUDGET_MISSING}
        assert reasons(layout(stage("ar", 0, "45%"), stage("dit", 0), card=None)) >= {Reason.BUDGET_MISSING}

    def test_with_its_footprint_given_the_sum_is_114(self) -> None:
        footprint = parse_budget(str(int(26.47 * GIB)))
        given = layout(stage("ar", 0, "95%"), card=H200, neighbours=(Neighbour("dit", 0, footprint),))
        refusal = next(problem for problem in check(given) if problem.reason is Reason.BUDGET_EXCEEDED)
        assert round(given.uses[0].total, 2) == Fraction(114, 100)
        assert refusal.slot == 0


class TestReplicasMultiplyShares:
    """s2pro_tts_replica2_h100.yaml and its split form: 0.35 + 0.10, two replicas of each on GPU 0."""

    def test_both_layouts_are_09_of_gpu_0(self) -> None:
        one_process = layout(
            stage("ar", 0, "35%", copies=2, process="p", kv_cache=GIB, engine=True),
            stage("vocoder", 0, "10%", copies=2, process="p"),
        )
        split = layout(stage("ar", 0, "35%", copies=2, kv_cache=GIB, engine=True), stage("vocoder", 0, "10%", copies=2))
        for given in (one_process, split):
            assert given.uses[0].total == Fraction(9, 10)
            assert check(given) == ()


class TestFullOrNearlyFull:
    """indextts2_low_latency.yaml, qwen3_omni_colocated, moss_tts: sums of 1.00, 1.00 and 0.97."""

    @pytest.mark.parametrize(
        ("parts", "verdicts"),
        [
            (("60%", "40%"), (Verdict.ACCEPTED, Verdict.REFUSED)),
            (("3%", "3%", "78%", "14%", "2%"), (Verdict.ACCEPTED, Verdict.REFUSED)),
            (("85%", "12%"), (Verdict.ACCEPTED, Verdict.REFUSED)),
            (("3%", "3%", "76%", "10%", "2%"), (Verdict.ACCEPTED, Verdict.ACCEPTED)),
        ],
    )
    def test_accepted_with_a_warning_and_refused_when_strict(
        self, parts: tuple[str, ...], verdicts: tuple[Verdict, Verdict]
    ) -> None:
        given = shares(*parts)
        assert (verdict(check(given)), verdict(check(given, strict=True))) == verdicts
        assert ({p.reason for p in check(given)} == {Reason.NO_HEADROOM}) is (verdicts[1] is Verdict.REFUSED)


class TestDiffusionShareIsNoCap:
    """vllm-omni#1818, #6946, #6960, hunyuan_image_3_moe.yaml: AR 0.3 and diffusion 0.9 on GPUs 0 to 7."""

    GPUS = tuple(range(8))

    def test_every_gpu_needs_120_of_100_and_the_share_is_marked(self) -> None:
        given = layout(stage("ar", self.GPUS, "30%", engine=True), stage("dit", self.GPUS, "90%", keeps_share=False))
        found = check(given)
        over = [problem for problem in found if problem.reason is Reason.BUDGET_EXCEEDED]
        assert [problem.slot for problem in over] == list(self.GPUS)
        assert all("120% of 100%" in problem.message for problem in over)
        marked = [problem for problem in found if problem.reason is Reason.SHARE_NOT_ENFORCED]
        assert [problem.slot for problem in marked] == list(self.GPUS)
        assert all(problem.stages == ("dit",) and problem.severity is Severity.WARNING for problem in marked)


class TestDeviceLists:
    """vllm-omni#4071, #4132: counts that are neither the world size nor a multiple of it by the replicas."""

    @pytest.mark.parametrize(
        ("gpus", "ranks", "replicas", "fits"),
        [((0, 1), 1, 1, False), ((0, 1), 2, 1, True), ((0, 1), 1, 2, True), ((0, 1, 2), 2, 1, False)],
    )
    def test_devices_are_ranks_or_ranks_times_replicas(
        self, gpus: tuple[int, ...], ranks: int, replicas: int, fits: bool
    ) -> None:
        given = layout(stage("thinker", gpus, "50%", ranks=ranks, copies=replicas))
        assert (Reason.DEVICE_COUNT_MISMATCH not in reasons(given)) is fits


class TestMpsOfTheDevicePlugin:
    """k8s-device-plugin#929, #443, #1299, #720, #594, #1548."""

    ON_PLUGIN = SharingBackend.DEVICE_PLUGIN

    def test_a_stage_on_two_gpus_is_refused(self) -> None:
        assert reasons(layout(stage("tp2", (0, 1), "50%"), backend=self.ON_PLUGIN)) == {Reason.SHARED_REQUEST_LIMIT}

    @pytest.mark.parametrize(
        ("processes", "budget", "fits"), [(1, "10Gi", True), (1, "11Gi", False), (2, "20Gi", True), (2, "21Gi", False)]
    )
    def test_a_pods_budget_is_the_limit_times_its_processes(self, processes: int, budget: str, fits: bool) -> None:
        """40 GB over 4 replicas is 10 GB for each CUDA client, so 20 for a pod with two."""
        plugin = DevicePlugin(replicas=4, one_gpu_nodes=True)
        given = layout(
            stage("a", 0, budget, gpu_processes=processes),
            card=card_of(40 * 1024),
            backend=self.ON_PLUGIN,
            device_plugin=plugin,
        )
        assert (Reason.BUDGET_EXCEEDED not in reasons(given)) is fits

    def test_one_replica_is_invalid(self) -> None:
        given = shares("10%", "10%", backend=self.ON_PLUGIN, device_plugin=DevicePlugin(1, one_gpu_nodes=True))
        assert reasons(given) == {Reason.SHARING_UNSUPPORTED}


class TestNoMemoryLabel:
    """KAI-Scheduler#706, Qwen3-Omni-DGX-Spark-GB10.yaml: nobody knows the card's memory. Shares 0.52 + 0.09 + 0.06."""

    def test_shares_fit_and_bytes_are_unknown(self) -> None:
        given = shares("52%", "9%", "6%", card=None)
        found = check(given)
        assert given.uses[0].total == Fraction(67, 100)
        assert [(p.reason, p.severity, p.needed, p.available) for p in found] == [
            (Reason.CARD_MISSING, Severity.QUESTION, None, None)
        ]

    def test_an_amount_is_neither_zero_nor_infinite(self) -> None:
        given = layout(stage("a", 0, "100Ti"), stage("b", 0, "9%"), card=None)
        assert verdict(check(given)) is Verdict.UNDECIDED
        assert dict(given.uses[0].shares) == {"b": Fraction(9, 100)}


class TestUnits:
    """sglang-omni writes `9GiB`, Kubernetes `9Gi`; `GB` is neither."""

    @pytest.mark.parametrize(("wrong", "right"), [("9GiB", "9Gi"), ("9GB", "9G"), ("1600MiB", "1600Mi")])
    def test_the_right_spelling_is_in_the_message(self, wrong: str, right: str) -> None:
        with pytest.raises(QuantityError, match=f"write {right}"):
            parse_budget(wrong)

    def test_a_slice_is_planned_by_its_own_20000_mib(self) -> None:
        """vllm-omni#469: an "H100" that reports 20000 MiB: a share of 0.3 is 5.86 GiB, not 24."""
        given = shares("30%", card=card_of(20_000))
        assert given.card is not None
        assert given.stages[0].budget is not None
        assert given.stages[0].budget.bytes_of(given.card.memory) == 6000 * MIB


def test_time_slicing_says_that_nothing_caps_what_is_no_engine() -> None:
    given = layout(
        stage("thinker", 0, "70%", engine=True), stage("code2wav", 0, "2%"), strategy=SharingStrategy.TIME_SLICING
    )
    assert reasons(given) == {Reason.SHARE_NOT_ENFORCED}
