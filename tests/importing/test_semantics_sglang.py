"""What sglang-omni's forms mean, and what is exported. One test per kind of case."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_operator.api.quantities import GIB
from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.catalogue import cards
from omni_operator.importing import (
    Imported,
    ImportProblem,
    NoteKind,
    NoteReason,
    export,
    import_file,
    import_text,
    slot_sums,
)
from tests.importing.texts import deploy, reasons, shares, stages_map

DATA = Path(__file__).parent / "data"
H100 = cards()["h100-80gb"]


F = Fraction


def test_mem_fraction_static_is_never_a_share() -> None:
    """Eight copies at 0.85 would be 6.8 cards; they run, with a token cap each."""
    file = DATA / "sglang-omni/mps_dp/higgs_h200_dp8.yaml"
    result = import_file(file, copies=8)
    asked = [note for note in result.questions if note.reason is NoteReason.BUDGET_UNKNOWN]
    assert [note.field for note in asked] == ["spec.stages[name=tts_engine].gpuMemory"]
    assert shares(result) == {0: F(8 * 13, 100)}
    assert NoteReason.CAP_MISSING not in reasons(result, NoteKind.WARNING)


def test_copies_on_one_gpu_without_a_cap_are_warned_of() -> None:
    result = stages_map({"tts_engine": {"gpu_memory_fraction": 0.3}}, "MossTTSSingleProcessPipelineConfig")
    assert NoteReason.CAP_MISSING not in reasons(result, NoteKind.WARNING)
    twice = import_text(
        "config_cls: MossTTSSingleProcessPipelineConfig\nmodel_path: m\n"
        "stages: {tts_engine: {gpu_memory_fraction: 0.37}, vocoder: {gpu_memory_fraction: 0.01},"
        " preprocessing: {gpu_memory_fraction: 0.01}}",
        copies=2,
    )
    assert shares(twice) == {0: F(78, 100)}
    assert NoteReason.CAP_MISSING in reasons(twice, NoteKind.WARNING)


def test_two_copies_of_moss_at_037_are_074_and_their_shared_weights_are_no_share() -> None:
    result = import_file(DATA / "sglang-omni/mps_dp/moss_delay_h100_dp2.yaml", copies=2)
    assert shares(result) == {0: F(74, 100)}


@pytest.mark.parametrize(
    ("processes", "sums"),
    [
        pytest.param({"num_replicas": 2, "replica_devices": [1, 2]}, {1: F(1, 4), 2: F(1, 4)}, id="two GPUs"),
        pytest.param({"num_replicas": 2, "replica_devices": "1, 1"}, {1: F(1, 2)}, id="one GPU, as text"),
        pytest.param({"num_replicas": 3, "replica_devices": [1, 1, 2]}, {1: F(1, 2), 2: F(1, 4)}, id="two and one"),
        pytest.param({"replica_devices": 1}, {1: F(1, 4)}, id="moved"),
    ],
)
def test_replicas_of_a_process_multiply_its_share(processes: dict[str, Any], sums: dict[int, Fraction]) -> None:
    result = stages_map({"talker_ar": {"gpu_memory_fraction": 0.25}}, processes={"talker_ar": processes})
    assert {slot: share for slot, share in shares(result).items() if slot} == sums


def test_replicas_of_a_tensor_parallel_process_cut_the_devices_in_groups() -> None:
    result = stages_map(
        {"thinker": {"gpu": [0, 1], "tp_size": 2, "gpu_memory_fraction": 0.5}},
        processes={"thinker": {"num_replicas": 2, "replica_devices": [0, 1, 2, 3]}},
    )
    thinkers = [stage for stage in result.layout.stages if stage.name.startswith("thinker")]
    assert [stage.slots for stage in thinkers] == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("stages", "processes", "reason"),
    [
        ({}, {"talker_ar": {"num_replicas": 2}}, NoteReason.DEVICES_MISSING),
        ({}, {"talker_ar": {"num_replicas": 2, "replica_devices": [1]}}, NoteReason.DEVICE_COUNT_MISMATCH),
        ({"thinker": {"tp_size": 2}}, {}, NoteReason.DEVICES_MISSING),
        ({"thinker": {"tp_size": 2, "gpu": [0, 1, 2]}}, {}, NoteReason.DEVICE_COUNT_MISMATCH),
        ({}, {"talker": {"num_replicas": 2}}, NoteReason.STAGE_UNKNOWN),
        ({"talker": {"gpu_memory_fraction": 0.5}}, {}, NoteReason.STAGE_UNKNOWN),
    ],
)
def test_what_upstream_would_refuse_is_asked(stages: Any, processes: Any, reason: NoteReason) -> None:
    assert reason in reasons(stages_map(stages, processes=processes), NoteKind.ASK)


def test_whole_pipelines_on_gpus_of_their_own_are_replicas() -> None:
    single = {"processes": {"asr": {"num_replicas": 2, "replica_devices": [0, 1]}}}
    result = stages_map({"asr": {"gpu_memory_fraction": 0.5}}, "Qwen3ASRPipelineConfig", **single)
    assert (result.manifest["spec"]["replicas"], shares(result)) == (2, {0: F(1, 2), 1: F(1, 2)})


def test_shared_writes_to_what_it_selects_and_the_stage_itself_wins() -> None:
    shared = [
        {"select": {"engine": True}, "gpu_memory_fraction": 0.5},
        {
            "select": {"stages": ["image_encoder", "audio_encoder"], "exclude": ["audio_encoder"]},
            "gpu_memory_fraction": 0.03,
        },
    ]
    result = stages_map({"talker_ar": {"gpu_memory_fraction": 0.25}}, shared=shared)
    budgets = {stage.name: str(stage.budget) for stage in result.layout.stages if stage.budget}
    assert budgets == {"image_encoder": "3%", "thinker": "50%", "talker_ar": "25%", "code2wav": "2%"}


def test_both_halves_of_a_split_stage_count() -> None:
    halves = {"prefill": {"gpu": 0, "memory_fraction": 0.3}, "decode": {"gpu": 2, "memory_fraction": 0.6}}
    result = stages_map({"thinker": {"pd_disaggregation": halves}, "talker_ar": {"gpu_memory_fraction": 0.25}})
    assert shares(result)[0] == F(32, 100)
    assert shares(result)[2] == F(6, 10)
    assert NoteReason.PREFILL_DECODE_SPLIT in reasons(result, NoteKind.NOT_CARRIED)


def test_weight_share_and_the_unquoted_on_are_said() -> None:
    result = import_text("config_cls: S2ProPipelineConfig\nmodel_path: m\nmps: on\nweight_share: on\nstages: {}\n")
    assert NoteReason.WEIGHT_SHARE in reasons(result, NoteKind.NOT_CARRIED)
    assert any("unquoted" in note.message for note in result.notes)
    assert result.manifest["spec"]["gpus"]["sharing"] == {"strategy": "MPS"}


def test_the_limit_per_gpu_is_the_most_that_is_given_away() -> None:
    result = stages_map({}, placement={"max_total_gpu_memory_fraction_per_gpu": 0.94})
    assert result.manifest["spec"]["gpus"] == {"maxShare": "94%"}
    assert result.layout.limit == F(94, 100)


def test_typing_errors_in_stages_are_said() -> None:
    result = stages_map({"thinker": {"gpu_memory_fracton": 0.5}})
    messages = [note.message for note in result.notes if note.kind is NoteKind.REFUSED_UPSTREAM]
    assert any("gpu_memory_fraction is" in message for message in messages)


def test_variables_that_the_driver_owns_are_not_carried_over() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_MPS_PIPE_DIRECTORY": "/x", "MINE": 1}
    result = stages_map({"thinker": {"env": env}})
    assert result.manifest["spec"]["stages"] == [{"name": "thinker", "env": [{"name": "MINE", "value": "1"}]}]


LIST = """
config_cls: Qwen3OmniSpeechPipelineConfig
model_path: org/model
stages:
- name: preprocessing
  factory: a.b
- {name: thinker, factory: a.b, gpu: [0, 1], tp_size: 2, process: thinker,
   runtime: {resources: {total_gpu_memory_fraction: 0.7}, sglang_server_args: {max_running_requests: 8}}}
- {name: talker_ar, executor: {factory: a.b, args: {device: "cuda:1"}},
   runtime: {resources: {total_gpu_memory_fraction: 0.2}}}
- {name: code2wav, executor: {factory: a.b, args: {device: cpu}}, get_next: a.b}
"""


def test_both_generations_of_the_stages_list() -> None:
    result = import_text(LIST)
    placed = {stage.name: stage.slots for stage in result.layout.stages}
    assert (placed["thinker"], placed["talker_ar"], placed["code2wav"]) == ((0, 1), (1,), ())
    assert shares(result) == {0: F(7, 10), 1: F(9, 10)}
    thinker = next(stage for stage in result.manifest["spec"]["stages"] if stage["name"] == "thinker")
    assert thinker["engineArgs"] == {"max_running_requests": 8}


def test_arguments_of_engine_and_factory_are_flat_as_the_stage_container_takes_them() -> None:
    result = import_text(
        """
config_cls: Qwen3OmniPipelineConfig
model_path: org/model
stages:
  thinker:
    engine: {max_running_requests: 8, dtype: bfloat16}
    factory: {encoder_mem_reserve: 0.045, dtype: float16, device: "cuda:1"}
  image_encoder:
    factory: {dtype: bfloat16, no_such_argument: 1}
"""
    )
    stages = {stage["name"]: stage.get("engineArgs") for stage in result.manifest["spec"]["stages"]}
    assert stages["thinker"] == {"max_running_requests": 8, "dtype": "bfloat16", "encoder_mem_reserve": 0.045}
    assert stages["image_encoder"] == {"dtype": "bfloat16"}
    assert any("image_encoder takes no argument no_such_argument" in note.message for note in result.notes)


def test_overrides_of_a_factory_are_the_engines_and_are_said_where_there_is_none() -> None:
    """`server_args_overrides` within `factory`: of an engine its arguments, of another stage nothing that is read."""
    text = (
        "config_cls: {}\nmodel_path: org/model\nstages:\n  {}: {{factory: {{server_args_overrides: {{some_mode: x}}}}}}"
    )
    (entry,) = import_text(text.format("HiggsTtsPipelineConfig", "tts_engine")).manifest["spec"]["stages"]
    assert entry["engineArgs"] == {"some_mode": "x"}
    result = import_text(text.format("Cosmos3PipelineConfig", "generation"))
    assert any("generation takes no argument some_mode" in note.message for note in result.notes)


def test_ranks_that_were_started_by_hand_count_on_the_next_devices() -> None:
    """examples/configs/s2pro_tts_tp2.yaml: the factory is given tp_size and the first device."""
    result = import_text(
        """
config_cls: S2ProPipelineConfig
model_path: fishaudio/s2-pro
stages:
- {name: tts_engine, executor: {factory: a.b, args: {device: "cuda:0", tp_size: 2, tp_rank: 0}}}
"""
    )
    assert next(stage.slots for stage in result.layout.stages if stage.name == "tts_engine") == (0, 1)
    assert any(note.field == "stages[0].executor.args.tp_size" for note in result.notes)


def test_fused_stages_of_old_are_not_carried_over_silently() -> None:
    head = "config_cls: Qwen3OmniSpeechColocatedPipelineConfig\nmodel_path: org/model\n"
    result = import_text(head + "fused_stages: [[talker_ar, code2wav]]\nstage_overrides: {thinker: {gpu: 0}}\n")
    assert [note.field for note in result.notes if "one process" in note.message] == ["fused_stages"]


def test_the_four_forms_say_the_same() -> None:
    head = "config_cls: Qwen3OmniPipelineConfig\nmodel_path: org/model\nname: same\n"
    share, engine = "resources: {total_gpu_memory_fraction: 0.7}", "{max_running_requests: 8}"
    texts = [
        f"{head}stages: {{thinker: {{gpu_memory_fraction: 0.7, engine: {{max_running_requests: 8}}}}}}",
        f"{head}stage_overrides: {{thinker: {{runtime: {{{share}, sglang_server_args: {engine}}}}}}}",
        f"{head}stage_overrides: {{thinker: {{runtime: {{{share}}}}}}}\n"
        "runtime_overrides: {thinker: {server_args_overrides: {max_running_requests: 8}}}",
        f"{head}stages: [{{name: thinker, runtime: {{{share}, sglang_server_args: {engine}}}}}]",
        f"{head}runtime_overrides: {{thinker: {{server_args_overrides: {{max_running_requests: 8}}, {share}}}}}",
    ]
    manifests = [import_text(text).manifest for text in texts]
    assert all(manifest == manifests[0] for manifest in manifests[:4])
    assert len({import_text(text).form for text in texts}) == 4


def test_upstream_and_kubernetes_sizes() -> None:
    as_upstream = stages_map({"thinker": {"total_reserve_bytes": "9GiB"}})
    as_kubernetes = stages_map({"thinker": {"total_reserve_bytes": "9Gi"}})
    assert as_upstream.manifest == as_kubernetes.manifest
    assert as_upstream.manifest["spec"]["stages"] == [{"name": "thinker", "gpuMemory": "9Gi"}]
    assert not reasons(as_upstream, NoteKind.REFUSED_UPSTREAM)
    assert reasons(as_kubernetes, NoteKind.REFUSED_UPSTREAM)


@settings(deadline=None)
@given(st.integers(1, 79))
def test_shares_and_bytes_of_one_size_agree(gib: int) -> None:
    """A share of a card and its bytes give the same sum on that card, to the last decimal of a percentage."""
    memory = H100.memory
    in_bytes = stages_map({"talker_ar": {"total_reserve_bytes": f"{gib}GiB"}})
    in_share = stages_map({"talker_ar": {"gpu_memory_fraction": float(F(gib * GIB, memory))}})
    ours, theirs = slot_sums(in_bytes.layout)[1], slot_sums(in_share.layout)[1]
    assert abs(F(ours.amount, memory) - theirs.share) <= F(1, 10**11)


@settings(deadline=None)
@given(st.integers(1, 10**9))
def test_decimals_are_exact(billionths: int) -> None:
    text = f"{billionths / 10**9:.9f}"
    result = import_text(f"stages: [{{stage_id: 0, devices: 0, gpu_memory_utilization: {text}}}]")
    assert shares(result) == {0: F(billionths, 10**9)}


def test_ten_tenths_are_one() -> None:
    assert shares(deploy(*({"devices": "0", "gpu_memory_utilization": 0.1},) * 10)) == {0: F(1)}


@pytest.mark.parametrize(
    "name", ["qwen3_omni_colocated_h100_bf16", "s2pro_tts_replica2_split_h100", "nemotron_voicechat_h100"]
)
def test_what_is_exported_imports_as_the_same_model(name: str) -> None:
    once = import_file(DATA / f"sglang-omni/latest/{name}.yaml", card="h100-80gb", name=name)
    spec = OmniModelSpec.model_validate(once.manifest["spec"])
    text = export(spec, name=name, layout=once.layout).yaml()
    again = import_text(text, card="h100-80gb", name=name)
    assert slot_sums(again.layout) == slot_sums(once.layout)
    assert not reasons(again, NoteKind.REFUSED_UPSTREAM)

    def essence(result: Imported) -> Any:
        return [(s.name, s.slots, s.budget, s.copies, s.kv_cache, s.engine_args) for s in result.layout.stages]

    assert essence(again) == essence(once)


def test_what_upstream_cannot_say_is_noted_at_export() -> None:
    spec = OmniModelSpec.model_validate(
        {
            "engine": "sglang-omni",
            "model": {"id": "Qwen/Qwen3-Omni-30B-A3B-Instruct", "cache": {"emptyDir": {}}},
            "replicas": 2,
            "stages": [{"name": "thinker", "computePercentage": 50, "startOrder": 1}],
        }
    )
    fields = {note.field for note in export(spec).notes}
    assert fields == {"spec.replicas", "spec.stages[0].computePercentage", "spec.stages[0].startOrder"}
    own = {"engine": "sglang-omni", "model": {"id": "x", "pipeline": "tiny_omni", "cache": {"emptyDir": {}}}}
    with pytest.raises(ImportProblem, match="cannot be exported"):
        export(OmniModelSpec.model_validate(own))
