"""The rules, one by one: what each refuses, what it lets pass, and what it says."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from omni_operator.api.enums import Placement, SharingBackend, SharingStrategy
from omni_operator.api.quantities import GIB, MIB, parse_budget
from omni_operator.api.reasons import Reason
from omni_operator.api.v1alpha1 import MAX_SLOTS
from omni_operator.planning.budget import RULES, Verdict, check, check_names, verdict
from omni_operator.planning.layout import DevicePlugin, Layout, Neighbour, Problem, Severity, SlotUse, refused
from omni_operator.planning.rules.sharing import mps_limit
from omni_operator.planning.rules.slots import MAX_CLAIM_RESULTS
from tests.planning.layouts import H100, card_of, layout, shares, stage

PLUGIN = SharingBackend.DEVICE_PLUGIN


def reasons(found: tuple[Problem, ...]) -> list[Reason]:
    return [problem.reason for problem in found]


def only(given: Layout, reason: Reason) -> Problem:
    found = [problem for problem in check(given) if problem.reason is reason]
    assert len(found) == 1, check(given)
    return found[0]


QWEN = {"image_encoder": "2%", "audio_encoder": "2%", "thinker": "78%", "talker_ar": "10%", "code2wav": "2%"}


def qwen(**changed: str) -> Layout:
    return layout(*(stage(name, 0, changed.get(name, share)) for name, share in QWEN.items()))


class TestTheSum:
    def test_the_layout_of_one_h100_is_clean(self) -> None:
        assert check(qwen()) == ()

    def test_an_overbooked_card_is_refused_with_gpu_stages_excess_and_smallest_change(self) -> None:
        problem = only(qwen(thinker="88%"), Reason.BUDGET_EXCEEDED)
        assert problem.message == (
            "GPU 0 is overbooked: 104% of 100% asked for by thinker 88%, talker_ar 10%, image_encoder 2%, "
            "audio_encoder 2%, code2wav 2%; 4% (about 3.2Gi) too many."
        )
        assert problem.remedy == "Smallest change: lower gpuMemory of thinker from 88% to 84%."
        assert (problem.needed, problem.available) == (88941642384, 81559 * MIB)
        assert problem.slot == 0

    def test_ten_tenths_are_a_whole(self) -> None:
        assert not refused(check(shares(*["10%"] * 10)))

    def test_a_ten_millionth_too_many_is_refused_and_never_reads_as_a_hundred_of_a_hundred(self) -> None:
        problem = only(shares("50%", "50.0000001%"), Reason.BUDGET_EXCEEDED)
        assert "100.0000001% of 100%" in problem.message
        assert problem.needed is not None
        assert problem.available is not None
        assert problem.needed > problem.available

    def test_one_byte_too_many_is_refused(self) -> None:
        half = H100.memory // 2
        assert not refused(check(layout(stage("a", 0, half), stage("b", 0, half))))
        problem = only(layout(stage("a", 0, half), stage("b", 0, half + 1)), Reason.BUDGET_EXCEEDED)
        assert (problem.needed, problem.available) == (H100.memory + 1, H100.memory)

    def test_percent_and_bytes_are_added_in_one_sum(self) -> None:
        card = card_of(80 * 1024)
        assert not refused(check(layout(stage("a", 0, "50%"), stage("b", 0, "40Gi"), card=card)))
        assert refused(check(layout(stage("a", 0, "60%"), stage("b", 0, "40Gi"), card=card)))

    def test_each_rank_counts_on_its_own_gpu(self) -> None:
        problem = only(layout(stage("thinker", (0, 1), "60%"), stage("talker", 1, "50%")), Reason.BUDGET_EXCEEDED)
        assert problem.slot == 1

    def test_copies_multiply(self) -> None:
        assert not refused(check(layout(stage("a", 0, "50%", copies=2))))
        assert refused(check(layout(stage("a", 0, "50.01%", copies=2))))

    def test_copies_with_slots_of_their_own_do_not_meet(self) -> None:
        assert not refused(check(layout(stage("a", (0, 1), "90%", copies=2, ranks=1))))

    def test_stages_of_one_process_count_each(self) -> None:
        both = layout(stage("a", 0, "70%", process="p"), stage("b", 0, "40%", process="p"))
        assert Reason.BUDGET_EXCEEDED in reasons(check(both))

    def test_the_limit_is_what_may_be_given_away(self) -> None:
        assert not refused(check(shares("50%", "40%", limit=Fraction(9, 10))))
        problem = only(shares("50%", "41%", limit=Fraction(9, 10)), Reason.BUDGET_EXCEEDED)
        assert "91% of 90%" in problem.message

    def test_what_others_hold_counts(self) -> None:
        # vllm-omni#1842: a neighbour that declared nothing took 26.47 GiB of an H200 beside a share of 0.95.
        held = (Neighbour("diffusion", 0, parse_budget(int(26.47 * GIB))),)
        card = card_of(143155)
        assert not refused(check(shares("95%", card=card)))
        problem = only(shares("95%", card=card, neighbours=held), Reason.BUDGET_EXCEEDED)
        assert "113.93% of 100%" in problem.message
        assert "diffusion 18.93%" in problem.message

    def test_what_others_hold_must_be_known(self) -> None:
        problem = only(shares("50%", neighbours=(Neighbour("someone", 0),)), Reason.BUDGET_UNKNOWN)
        assert problem.severity is Severity.QUESTION

    def test_a_neighbour_on_another_slot_does_not_matter(self) -> None:
        assert check(shares("90%", neighbours=(Neighbour("someone", 3),))) == ()

    def test_an_amount_bigger_than_the_card_names_its_stage(self) -> None:
        found = check(layout(stage("a", 0, "80Gi")))
        assert any("Stage a asks for 80Gi, more than a whole h100-80gb (79.6Gi)" in p.message for p in found)

    def test_the_smallest_change_keeps_the_unit_of_the_declaration(self) -> None:
        problem = only(layout(stage("a", 0, "70Gi"), stage("b", 0, "20%")), Reason.BUDGET_EXCEEDED)
        assert problem.remedy == "Smallest change: lower gpuMemory of a from 70Gi to 65247Mi."

    def test_no_change_of_one_stage_is_proposed_where_none_is_enough(self) -> None:
        problem = only(shares(*["40%"] * 5), Reason.BUDGET_EXCEEDED)
        assert problem.remedy == "No single stage can give that much; move a stage away from GPU 0."


class TestMissingBudgets:
    def test_one_process_without_a_budget_beside_another_is_refused(self) -> None:
        problem = only(layout(stage("a", 0, "45%"), stage("b", 0)), Reason.BUDGET_MISSING)
        assert "Stage b shares GPU 0 with a but declares no gpuMemory" in problem.message
        assert "55% of the card is not given away yet" in problem.remedy

    def test_alone_on_its_gpu_a_stage_needs_none(self) -> None:
        assert check(layout(stage("a", 0), stage("b", 1))) == ()

    def test_stages_of_one_process_need_none(self) -> None:
        assert check(layout(stage("a", 0, process="p"), stage("b", 0, process="p"))) == ()

    def test_copies_on_one_gpu_need_one(self) -> None:
        assert Reason.BUDGET_MISSING in reasons(check(layout(stage("a", 0, copies=2))))

    def test_beside_another_tenant_it_needs_one(self) -> None:
        held = (Neighbour("tenant", 0, parse_budget("10%")),)
        assert Reason.BUDGET_MISSING in reasons(check(layout(stage("a", 0), neighbours=held)))

    def test_a_fraction_of_free_memory_is_asked_about_and_never_added_up(self) -> None:
        copies = [stage(f"r{i}", 0, engine=True, engine_args={"mem_fraction_static": 0.85}) for i in range(8)]
        found = check(layout(*copies))
        assert set(reasons(found)) == {Reason.BUDGET_UNKNOWN}
        assert verdict(found) is Verdict.UNDECIDED
        assert found[0].field == "spec.stages[name=r0].gpuMemory"

    def test_a_stage_on_the_cpu_has_none(self) -> None:
        assert reasons(check(layout(stage("a", (), "10%")))) == [Reason.BUDGET_INVALID]


class TestWithoutACard:
    def test_shares_fit_and_bytes_are_a_question(self) -> None:
        found = check(shares("52%", "9%", "6%", card=None))
        assert reasons(found) == [Reason.CARD_MISSING]
        assert "the shares fit, but byte budgets are unknown" in found[0].message
        assert verdict(found) is Verdict.UNDECIDED
        assert refused(found)

    def test_shares_that_do_not_fit_are_refused_all_the_same(self) -> None:
        found = check(shares("52%", "59%", card=None))
        assert verdict(found) is Verdict.REFUSED
        assert found[0].needed is None

    def test_an_amount_is_neither_nothing_nor_everything(self) -> None:
        found = check(layout(stage("a", 0, "62Gi"), stage("b", 0, "20%"), card=None))
        assert reasons(found) == [Reason.CARD_MISSING]
        assert "amounts of a cannot be compared" in found[0].message

    def test_without_gpus_no_card_is_asked_for(self) -> None:
        assert check(layout(stage("a", ()), card=None)) == ()


class TestKvCache:
    def test_it_is_part_of_the_budget(self) -> None:
        assert check(layout(stage("a", 0, "4Gi", kv_cache=4 * GIB))) == ()
        problem = only(layout(stage("a", 0, "4Gi", kv_cache=5 * GIB)), Reason.KV_CACHE_EXCEEDED)
        assert "a KV cache of 5Gi is more than its whole budget of 4Gi" in problem.message

    def test_an_amount_is_compared_without_a_card(self) -> None:
        found = check(layout(stage("a", 0, "4Gi", kv_cache=5 * GIB), card=None))
        assert Reason.KV_CACHE_EXCEEDED in reasons(found)

    def test_pools_are_a_lower_bound_without_budgets(self) -> None:
        one = stage("a", 0, kv_cache=50 * GIB, process="p")
        two = stage("b", 0, kv_cache=50 * GIB, process="p")
        problem = only(layout(one, two), Reason.KV_CACHE_EXCEEDED)
        assert "GPU 0: the KV caches of a, b take 100Gi alone; 79.6Gi of the card may be given away" in problem.message

    def test_copies_have_pools_of_their_own(self) -> None:
        assert Reason.KV_CACHE_EXCEEDED in reasons(check(layout(stage("a", 0, kv_cache=41 * GIB, copies=2))))


class TestHeadroom:
    @pytest.mark.parametrize(
        ("percents", "expected"),
        [
            (("60%", "40%"), "GPU 0 keeps only 0% of the card free."),
            (("85%", "12%"), "GPU 0 keeps only 3% of the card free."),
            (("84%", "10.0001%"), "GPU 0 keeps only 5.9999% of the card free."),
            (("84%", "10%"), None),
        ],
    )
    def test_nearly_full_is_accepted_with_a_warning(self, percents: tuple[str, ...], expected: str | None) -> None:
        found = check(shares(*percents))
        assert not refused(found)
        assert [p.message for p in found] == ([expected] if expected else [])
        assert verdict(check(shares(*percents), strict=True)) is (Verdict.REFUSED if expected else Verdict.ACCEPTED)


class TestSlots:
    def test_a_skipped_slot_is_refused(self) -> None:
        assert only(layout(stage("a", 1, "50%")), Reason.SLOT_SKIPPED).slot == 0

    def test_a_claim_holds_32_gpus(self) -> None:
        assert MAX_CLAIM_RESULTS == MAX_SLOTS
        assert Reason.TOO_MANY_SLOTS in reasons(check(layout(*(stage(f"s{i}", i) for i in range(33)))))
        assert check(layout(*(stage(f"s{i}", i) for i in range(32)))) == ()

    def test_a_gpu_is_listed_once(self) -> None:
        assert Reason.DEVICE_COUNT_MISMATCH in reasons(check(layout(stage("a", (0, 0), "10%"))))

    @pytest.mark.parametrize(
        ("slots", "ranks", "copies", "fits"),
        [((0, 1), 2, 1, True), ((0, 1), 1, 2, True), ((0,), 1, 2, True), ((0, 1), 1, 1, False), ((0,), 2, 1, False),
         ((0, 1, 2, 3), 2, 2, True), ((0, 1, 2), 2, 2, False), ((), 1, 1, True), ((), 2, 1, False)],
    )  # fmt: skip
    def test_slots_are_ranks_or_ranks_times_copies(
        self, slots: tuple[int, ...], ranks: int, copies: int, fits: bool
    ) -> None:
        found = check(layout(stage("a", slots, "10%" if slots else None, ranks=ranks, copies=copies)))
        assert (Reason.DEVICE_COUNT_MISMATCH not in reasons(found)) is fits

    def test_some_pairs_stay_apart(self) -> None:
        given = shares("40%", "40%", apart=(("s0", "s1"), ("s0", "unknown")))
        assert reasons(check(given)) == [Reason.LAYOUT_UNSUPPORTED]

    def test_a_split_stage_of_such_a_pair_may_meet_the_other(self) -> None:
        given = layout(stage("s0", (0, 1), "40%"), stage("s1", 1, "40%"), apart=(("s0", "s1"),))
        assert check(given) == ()

    @pytest.mark.parametrize(("where", "words"), [(1, "c is on GPU 1"), ((0, 1), "c is on GPUs 0, 1"), ((), "the CPU")])
    def test_some_variants_keep_to_one_gpu(self, where: tuple[int, ...] | int, words: str) -> None:
        stray = stage("c", where, "10%" if where != () else None)
        given = layout(stage("a", 0, "40%"), stage("b", 0, "40%"), stray, stage("cpu", ()), together=("a", "b", "c"))
        problem = only(given, Reason.LAYOUT_UNSUPPORTED)
        assert words in problem.message
        assert (problem.slot, problem.stages) == (0 if where == () else 1, ("c",))
        assert problem.remedy.startswith("Put c on GPU 0 alone")
        assert (
            check(
                replace(
                    given,
                    stages=tuple(
                        replace(s, slots=(0,)) if s is stray else s
                        for s in given.stages
                        if s is not stray or where != ()
                    ),
                )
            )
            == ()
        )

    def test_local_edges_stay_in_one_process(self) -> None:
        given = shares("40%", "40%", process_local_edges=(("s0", "s1"), ("s0", "unknown")))
        assert reasons(check(given)) == [Reason.PROCESS_SPLIT]

    def test_a_process_has_one_set_of_gpus(self) -> None:
        given = layout(stage("a", 0, "10%", process="p"), stage("b", 1, "10%", process="p"))
        assert reasons(check(given)) == [Reason.PROCESS_SPLIT]

    def test_a_split_stage_is_alone_in_its_process(self) -> None:
        given = layout(stage("a", (0, 1), "10%", process="p"), stage("b", (0, 1), "10%", process="p"))
        assert Reason.PROCESS_SPLIT in reasons(check(given))

    def test_pod_names_must_differ(self) -> None:
        given = layout(stage("a_b", 0, "10%"), stage("a-b", 0, "10%"))
        assert reasons(check(given)) == [Reason.NAMES_COLLIDE, Reason.NAMES_COLLIDE]


class TestSharing:
    def test_without_sharing_a_gpu_has_one_process(self) -> None:
        assert reasons(check(shares("40%", "40%", strategy=SharingStrategy.NONE))) == [Reason.SHARING_UNSUPPORTED]
        assert check(shares("40%", strategy=SharingStrategy.NONE)) == ()

    def test_mps_takes_48_clients(self) -> None:
        assert not refused(check(layout(stage("a", 0, "1%", copies=48))))
        assert Reason.TOO_MANY_CLIENTS in reasons(check(layout(stage("a", 0, "1%", copies=49))))

    def test_stages_of_one_process_are_one_client(self) -> None:
        together = layout(*(stage(f"s{i}", 0, "1%", process="p") for i in range(60)))
        assert not refused(check(together))
        assert SlotUse(together, 0).clients == 1

    def test_the_mps_limit_is_the_share_of_each_process_in_whole_mib(self) -> None:
        given = layout(stage("a", 0, "50%", gpu_processes=4), stage("b", 0, "1600Mi"))
        assert mps_limit(given, given.uses[0], "a") == (81559 * MIB // 2 // 4) // MIB * MIB
        assert mps_limit(given, given.uses[0], "b") == 1600 * MIB
        assert mps_limit(replace(given, card=None), given.uses[0], "b") is None

    def test_a_limit_that_cannot_hold_a_cuda_context_is_a_warning(self) -> None:
        found = check(layout(stage("a", 0, "50%"), stage("b", 0, "400Mi")))
        assert reasons(found) == [Reason.BUDGET_TIGHT]
        assert not refused(found)

    def test_only_mps_caps_threads(self) -> None:
        given = shares("40%", strategy=SharingStrategy.TIME_SLICING)
        given = replace(given, stages=(replace(given.stages[0], compute_percentage=50),))
        assert reasons(check(given)) == [Reason.SHARING_UNSUPPORTED]

    def test_what_nothing_enforces_is_said_once_per_gpu_and_only_where_it_can_hurt(self) -> None:
        stages = (stage("thinker", 0, "50%", engine=True), stage("encoder", 0, "2%"), stage("vocoder", 0, "3%"))
        under_mps = layout(*stages)
        assert check(under_mps) == ()
        found = check(replace(under_mps, strategy=SharingStrategy.TIME_SLICING))
        assert reasons(found) == [Reason.SHARE_NOT_ENFORCED]
        assert found[0].stages == ("encoder", "vocoder")
        assert not refused(found)

    def test_a_stage_known_to_ignore_its_share_is_named_under_mps_too(self) -> None:
        given = layout(stage("ar", 0, "30%", engine=True), stage("dit", 0, "40%", keeps_share=False))
        assert reasons(check(given)) == [Reason.SHARE_NOT_ENFORCED]

    def test_copies_without_a_common_cap_are_a_warning(self) -> None:
        assert reasons(check(layout(stage("a", 0, "40%", engine=True, copies=2)))) == [Reason.COPIES_UNCAPPED]
        assert check(layout(stage("a", 0, "40%", engine=True, copies=2, kv_cache=GIB))) == ()
        capped = stage("a", 0, "40%", engine=True, copies=2, engine_args={"max_total_tokens": 30_000})
        assert check(layout(capped)) == ()


class TestTheDevicePlugin:
    def test_two_pods_meet_only_where_a_node_has_one_gpu(self) -> None:
        given = shares("40%", "40%", backend=PLUGIN)
        assert reasons(check(given)) == [Reason.SHARING_UNSUPPORTED]
        assert check(replace(given, device_plugin=DevicePlugin(one_gpu_nodes=True))) == ()

    def test_nodes_of_one_gpu_have_no_second_slot(self) -> None:
        one_gpu = DevicePlugin(one_gpu_nodes=True)
        given = layout(stage("a", 0, "40%"), stage("b", 1, "40%"), backend=PLUGIN, device_plugin=one_gpu)
        assert reasons(check(given)) == [Reason.TOO_MANY_SLOTS]
        assert check(replace(given, placement=Placement.ANY_NODE)) == ()

    def test_a_pod_requests_one_shared_gpu_at_most(self) -> None:
        given = layout(stage("thinker", (0, 1), "60%"), backend=PLUGIN)
        assert reasons(check(given)) == [Reason.SHARED_REQUEST_LIMIT]
        assert check(replace(given, strategy=SharingStrategy.NONE)) == ()

    def test_each_process_gets_an_equal_part(self) -> None:
        plugin = DevicePlugin(replicas=4, one_gpu_nodes=True)
        card = card_of(40 * 1024)
        fits = layout(stage("a", 0, "10Gi"), stage("b", 0, "25%"), card=card, backend=PLUGIN, device_plugin=plugin)
        assert not refused(check(fits))
        over = layout(stage("a", 0, "10241Mi"), stage("b", 0, "25%"), card=card, backend=PLUGIN, device_plugin=plugin)
        problem = only(over, Reason.BUDGET_EXCEEDED)
        assert (problem.needed, problem.available) == (10241 * MIB, 10240 * MIB)

    def test_the_part_counts_for_each_process_of_a_pod(self) -> None:
        plugin = DevicePlugin(replicas=4, one_gpu_nodes=True)
        given = stage("a", 0, "20Gi", gpu_processes=2)
        card = card_of(40 * 1024)
        assert not refused(check(layout(given, card=card, backend=PLUGIN, device_plugin=plugin)))

    def test_threads_beyond_an_equal_part_are_a_warning(self) -> None:
        given = stage("a", 0, "10%", compute_percentage=26)
        plugin = DevicePlugin(replicas=4, one_gpu_nodes=True)
        found = check(layout(given, stage("b", 0, "10%"), backend=PLUGIN, device_plugin=plugin))
        assert not refused(found)
        assert any("gives a process 25%" in problem.message for problem in found)
        fits = layout(replace(given, compute_percentage=25), stage("b", 0, "10%"), backend=PLUGIN, device_plugin=plugin)
        assert not any("threads" in problem.message for problem in check(fits))

    def test_more_pods_than_parts_are_refused(self) -> None:
        given = shares("10%", "10%", "10%", backend=PLUGIN, device_plugin=DevicePlugin(2, one_gpu_nodes=True))
        assert Reason.TOO_MANY_CLIENTS in reasons(check(given))

    def test_one_part_is_no_sharing(self) -> None:
        given = shares("10%", "10%", backend=PLUGIN, device_plugin=DevicePlugin(1, one_gpu_nodes=True))
        assert reasons(check(given)) == [Reason.SHARING_UNSUPPORTED]


def test_errors_come_before_questions_before_warnings() -> None:
    found = check(layout(stage("a", 0, "60%"), stage("b", 0, "40%"), stage("c", 1, "70%"), stage("d", 1, "40%")))
    assert reasons(found) == [Reason.BUDGET_EXCEEDED, Reason.NO_HEADROOM]
    mixed = check(shares("60%", "41%", card=None))
    assert [p.severity for p in mixed] == [Severity.ERROR, Severity.QUESTION]


def test_every_rule_has_a_name_and_says_what_it_is_for() -> None:
    assert len({rule.__name__ for rule in RULES}) == len(RULES)
    assert all(rule.__doc__ for rule in RULES)


def test_a_pods_name_must_be_a_hostname() -> None:
    assert list(check_names("qwen3-omni", qwen())) == []
    problems = list(check_names("q" * 50, qwen()))
    assert {problem.reason for problem in problems} == {Reason.NAME_TOO_LONG}
    assert problems[0].field == "metadata.name"


def test_a_message_about_many_stages_stays_readable() -> None:
    problem = only(shares(*["8%"] * 20), Reason.BUDGET_EXCEEDED)
    assert "14 more" in problem.message
    assert len(problem.message) < 250
