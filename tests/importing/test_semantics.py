"""What the forms mean: devices, ranks, replicas, budgets, platforms and copies. One test per kind of case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_operator.api.quantities import GIB
from omni_operator.api.reasons import Reason
from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.catalogue import cards, pipelines
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
from omni_operator.importing.vllm import registry
from omni_operator.importing.vllm_correspondence import CORRESPONDENCES
from omni_operator.planning.budget import check
from tests.importing import regenerate_vllm_pipelines

DATA = Path(__file__).parent / "data"
H100 = cards()["h100-80gb"]


def deploy(*stages: Mapping[str, Any], **rest: Any) -> Imported:
    entries = [{"stage_id": i, **stage} for i, stage in enumerate(stages)]
    return import_text(json.dumps({"stages": entries, **rest}))


def stages_map(stages: Mapping[str, Any], config_cls: str = "Qwen3OmniSpeechPipelineConfig", **rest: Any) -> Imported:
    return import_text(yaml.safe_dump({"config_cls": config_cls, "model_path": "org/model", "stages": stages, **rest}))


def shares(result: Imported) -> dict[int, Fraction]:
    return {slot: one.share for slot, one in slot_sums(result.layout).items()}


def reasons(result: Imported, kind: NoteKind) -> list[NoteReason]:
    return [note.reason for note in result.notes if note.kind is kind]


F = Fraction


@pytest.mark.parametrize(
    ("stage", "sums"),
    [
        pytest.param({"devices": "0,1", "tensor_parallel_size": 2}, {0: F(1, 2), 1: F(1, 2)}, id="each rank counts"),
        pytest.param({"devices": [1, 0], "tensor_parallel_size": 2}, {0: F(1, 2), 1: F(1, 2)}, id="list of devices"),
        pytest.param({"devices": 0, "num_replicas": 2}, {0: F(1, 2), 1: F(1, 2)}, id="template is moved on"),
        pytest.param({"devices": "0,0", "num_replicas": 2}, {0: F(1)}, id="two replicas on one GPU"),
        pytest.param({"devices": "3,2", "num_replicas": 2}, {0: F(1, 2), 1: F(1, 2)}, id="pool, renumbered"),
        pytest.param(
            {"devices": "0,1,2,3", "tensor_parallel_size": 2, "num_replicas": 2},
            dict.fromkeys(range(4), F(1, 2)),
            id="pool",
        ),
        pytest.param(
            {"devices": "0,1", "tensor_parallel_size": 2, "num_replicas": 2},
            dict.fromkeys(range(4), F(1, 2)),
            id="template",
        ),
        pytest.param(
            {"devices": "0,1", "parallel_config": {"ulysses_degree": 2}}, {0: F(1, 2), 1: F(1, 2)}, id="ulysses"
        ),
        pytest.param(
            {"devices": "0,1,2,3", "parallel_config": {"cfg_parallel_size": 2, "ring_degree": 2}},
            dict.fromkeys(range(4), F(1, 2)),
            id="cfg and ring",
        ),
        pytest.param({"devices": "0,1", "data_parallel_size": 2}, {0: F(1, 2), 1: F(1, 2)}, id="data parallel"),
        pytest.param({"devices": "cpu"}, {}, id="cpu"),
        pytest.param({}, {0: F(1, 2)}, id="no devices: the first"),
        pytest.param({"runtime": {"devices": "1"}, "devices": "0"}, {0: F(1, 2)}, id="runtime wins"),
        pytest.param({"engine_args": {"gpu_memory_utilization": 0.25}}, {0: F(1, 4)}, id="engine_args win"),
    ],
)
def test_devices_of_vllm_stages(stage: dict[str, Any], sums: dict[int, Fraction]) -> None:
    result = deploy({"gpu_memory_utilization": 0.5, **stage})
    assert shares(result) == sums
    assert NoteReason.DEVICE_COUNT_MISMATCH not in reasons(result, NoteKind.ASK)


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param({"devices": "0,1"}, id="two devices, one rank, one replica"),
        pytest.param({"devices": "0", "tensor_parallel_size": 2}, id="one device, two ranks"),
        pytest.param({"devices": "0,1,2", "num_replicas": 2}, id="three devices, two replicas"),
        pytest.param({"devices": "1", "num_replicas": 2}, id="a template that starts at 1"),
    ],
)
def test_device_counts_that_do_not_fit_are_asked(stage: dict[str, Any]) -> None:
    result = deploy({"gpu_memory_utilization": 0.5, **stage})
    asked = [note for note in result.questions if note.reason is NoteReason.DEVICE_COUNT_MISMATCH]
    assert [note.field for note in asked] == ["stages[stage_id=0].devices"]
    listed = set(stage["devices"].split(","))
    assert set(shares(result).values()) == {F(1, 2)}
    assert len(shares(result)) == len(listed)


def test_replicas_without_devices_are_asked() -> None:
    assert NoteReason.DEVICES_MISSING in reasons(deploy({"num_replicas": 2}), NoteKind.ASK)


def test_a_share_for_all_stages_is_not_counted_and_that_is_said() -> None:
    """A share of 0.2 given once was ignored: 0.8 and 0.1 of the stages won."""
    shares_of_stages = {"devices": "0", "gpu_memory_utilization": 0.8}, {"devices": "0", "gpu_memory_utilization": 0.1}
    result = deploy(*shares_of_stages, gpu_memory_utilization=0.2)
    assert shares(result) == {0: F(9, 10)}
    assert [note.field for note in result.notes if note.kind is NoteKind.WARNING] == ["gpu_memory_utilization"]


def test_devices_are_logical_and_become_slots_without_gaps() -> None:
    result = deploy({"devices": "2", "gpu_memory_utilization": 0.5}, {"devices": "5", "gpu_memory_utilization": 0.25})
    assert result.slots == {2: 0, 5: 1}
    assert shares(result) == {0: F(1, 2), 1: F(1, 4)}
    assert NoteReason.DEVICES_RENUMBERED in reasons(result, NoteKind.UNIT)


def test_a_neighbour_without_a_share_is_asked() -> None:
    result = deploy({"devices": "0", "gpu_memory_utilization": 0.45}, {"devices": "0"}, pipeline="bagel")
    assert [note.field for note in result.questions if note.reason is NoteReason.BUDGET_MISSING] == [
        "spec.stages[name=dit].gpuMemory"
    ]


def test_a_diffusion_share_is_counted_and_said_to_be_unenforced() -> None:
    result = deploy(
        {"devices": "0", "gpu_memory_utilization": 0.3},
        {"devices": "0", "gpu_memory_utilization": 0.9, "stage_type": "diffusion"},
    )
    assert shares(result) == {0: F(6, 5)}
    assert NoteReason.SHARE_NOT_ENFORCED in reasons(result, NoteKind.WARNING)
    assert [(p.reason, p.slot) for p in check(result.layout) if p.reason is Reason.SHARE_NOT_ENFORCED] == [
        (Reason.SHARE_NOT_ENFORCED, 0)
    ]


def test_shared_memory_does_not_reach_between_pods() -> None:
    connectors = {"shm": {"name": "SharedMemoryConnector"}, "rdma": {"name": "MooncakeConnector"}}
    result = deploy({}, {"input_connectors": {"from_stage_0": "shm"}}, connectors=connectors)
    assert [n.field for n in result.notes if n.reason is NoteReason.SHARED_MEMORY] == ["connectors.shm"]
    with pytest.raises(ImportProblem, match="no connector 'shn'"):
        deploy({}, {"input_connectors": {"from_stage_0": "shn"}}, connectors=connectors)


def test_platforms_have_layouts_of_their_own_and_cuda_is_the_manifest() -> None:
    over = {
        "cuda": {"stages": [{"stage_id": 0, "gpu_memory_utilization": 0.25}]},
        "npu": {"stages": [{"stage_id": 0, "devices": "0,1", "tensor_parallel_size": 2}, {"stage_id": 9}]},
        "xpu": {
            "stages": [{"stage_id": 0, "engine_args": {"gpu_memory_utilization": 0.75}, "runtime": {"devices": "3"}}]
        },
    }
    result = deploy({"devices": "0", "gpu_memory_utilization": 0.5}, platforms=over)
    sums = {
        name: {slot: one.share for slot, one in slot_sums(layout).items()} for name, layout in result.platforms.items()
    }
    assert sums == {"cuda": {0: F(1, 4)}, "npu": {0: F(1, 2), 1: F(1, 2)}, "xpu": {0: F(3, 4)}}
    assert result.manifest["spec"]["stages"][0]["gpuMemory"] == "25%"


def test_stage_overrides_win_over_file_and_platform(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(
        "stages: [{stage_id: 0, gpu_memory_utilization: 0.8}, {stage_id: 1, gpu_memory_utilization: 0.1}]\n"
        "platforms: {cuda: {stages: [{stage_id: 0, gpu_memory_utilization: 0.7}]}}\n"
    )
    assert shares(import_file(file)) == {0: F(4, 5)}
    over = import_file(file, stage_overrides='{"0": {"gpu_memory_utilization": 0.2}, "1": {"devices": "1"}}')
    assert shares(over) == {0: F(1, 5), 1: F(1, 10)}
    with pytest.raises(ImportProblem, match="stage-overrides"):
        import_file(file, stage_overrides='{"a": {}}')


def test_a_base_is_overlaid_stage_by_stage(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "pipeline: qwen3_tts\nstages: [{stage_id: 0, devices: '0', gpu_memory_utilization: 0.3},"
        " {stage_id: 1, devices: '1', gpu_memory_utilization: 0.3}]"
    )
    top = tmp_path / "top.yaml"
    top.write_text("base_config: base.yaml\nstages: [{stage_id: 1, devices: '0'}]")
    result = import_file(top)
    assert shares(result) == {0: F(3, 5)}
    assert [stage["name"] for stage in result.manifest["spec"]["stages"]] == ["tts_engine", "vocoder"]


def test_known_stages_are_renamed_and_the_variant_follows_the_layout() -> None:
    def of(talker: str) -> dict[str, Any]:
        rows = [{"devices": "0"}, {"devices": talker}, {"devices": talker}]
        result = deploy(*({**row, "gpu_memory_utilization": 0.25} for row in rows), pipeline="qwen3_omni_moe")
        spec: dict[str, Any] = result.manifest["spec"]
        return spec

    assert [stage["name"] for stage in of("1")["stages"]] == ["thinker", "talker_ar", "code2wav"]
    assert "variant" not in of("1")["model"]
    assert of("0")["model"]["variant"] == "speech-colocated"


def test_an_answered_pipeline_is_taken() -> None:
    text = "stages: [{stage_id: 0, devices: '0', gpu_memory_utilization: 0.5, model_stage: thinker}]"
    result = import_text(text, pipeline="qwen3_omni", variant="text", model="org/model")
    assert result.manifest["spec"]["model"]["variant"] == "text"
    with pytest.raises(ImportProblem, match="no pipeline 'nope'"):
        import_text(text, pipeline="nope")


def test_stages_that_the_file_leaves_out_are_asked() -> None:
    result = deploy({"devices": "0", "gpu_memory_utilization": 0.5}, pipeline="qwen3_omni_moe")
    assert reasons(result, NoteKind.ASK).count(NoteReason.STAGE_MISSING) == 2


def test_the_registry_is_that_of_the_package() -> None:
    """Where vllm-omni is installed, its source is read again."""
    found = find_spec("vllm_omni")
    if found is None or found.origin is None:
        pytest.skip("vllm-omni is not installed")
    assert regenerate_vllm_pipelines.render(Path(found.origin).parent) == regenerate_vllm_pipelines.TARGET.read_text()


def test_every_corresponding_stage_exists_on_both_sides() -> None:
    for name, row in CORRESPONDENCES.items():
        pipeline = pipelines()[row.pipeline]
        variant = pipeline.variants[row.variant or pipeline.default_variant]
        assert [stage for stage, _ in registry()[name].stages] == list(row.stages)
        assert {stage.name for stage in variant.stages} >= set(row.stages.values())


# sglang-omni


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
