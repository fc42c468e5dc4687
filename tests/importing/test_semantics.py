"""What the forms mean: devices, ranks, replicas, budgets, platforms and copies. One test per kind of case."""

from __future__ import annotations

from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from omni_operator.api.reasons import Reason
from omni_operator.catalogue import cards, pipelines
from omni_operator.importing import (
    ImportProblem,
    NoteKind,
    NoteReason,
    import_file,
    import_text,
    slot_sums,
)
from omni_operator.importing.vllm import registry
from omni_operator.importing.vllm_correspondence import CORRESPONDENCES
from omni_operator.planning.budget import check
from tests.importing import regenerate_vllm_pipelines
from tests.importing.texts import deploy, reasons, shares

DATA = Path(__file__).parent / "data"
H100 = cards()["h100-80gb"]


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
