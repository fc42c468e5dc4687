"""From a claim to what its containers get: groups, daemons, CDI edits, and what is kept of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.fake_gpu.cdi import specification
from e2e.fake_gpu.claims import collision, groups_of
from e2e.fake_gpu.gpu_config import API_VERSION, Driver, Refused
from e2e.fake_gpu.one_daemon import daemons_of
from e2e.fake_gpu.profiles import gpus_of
from e2e.fake_gpu.state import State

GPUS = gpus_of("node", 2, "h100-80gb")
DRIVER = Driver({"MPSSupport": True, "TimeSlicingSettings": True})
MPS = {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "48Gi"}}


def entry(*requests: str, source: str = "FromClaim", driver: str = "gpu.nvidia.com", **sharing: Any) -> dict[str, Any]:
    parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": sharing or MPS}
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def claim(*config: dict[str, Any], uid: str = "uid-1") -> dict[str, Any]:
    results = [
        {"driver": "gpu.nvidia.com", "request": f"slot{index}", "pool": "node", "device": f"gpu-{index}"}
        for index in range(2)
    ]
    allocation = {"devices": {"results": results, "config": list(config)}}
    return {"metadata": {"name": "m-0", "uid": uid}, "status": {"allocation": allocation}}


def pod(*picks: str | None, name: str = "thinker") -> dict[str, Any]:
    uses = [{"name": "gpus"} if pick is None else {"name": "gpus", "request": pick} for pick in picks]
    container = {"name": "stage", "resources": {"claims": uses}}
    references = [{"name": "gpus", "resourceClaimName": "m-0"}]
    return {"metadata": {"name": name}, "spec": {"resourceClaims": references, "containers": [container]}}


def edits_of(config: dict[str, Any], request: int) -> dict[str, Any]:
    groups = groups_of(config, GPUS, DRIVER)
    spec = specification("uid-1", groups, Path("/markers"), Path("/memory"), Path("/mps"), ["python", "one_daemon.py"])
    edits: dict[str, Any] = {each["name"]: each for each in spec["devices"]}[f"uid-1-gpu-{request}"]["containerEdits"]
    return edits


def test_without_configuration_the_devices_form_one_unshared_group() -> None:
    (group,) = groups_of(claim(), GPUS, DRIVER)
    assert [each.request for each in group.devices] == ["slot0", "slot1"]
    assert group.daemon is None


def test_one_entry_for_two_requests_makes_one_daemon_and_two_entries_make_two() -> None:
    (joint,) = groups_of(claim(entry("slot0", "slot1")), GPUS, DRIVER)
    assert joint.daemon is not None
    assert joint.daemon.limits == {gpu.uuid: "49152M" for gpu in GPUS}
    apart = groups_of(claim(entry("slot0"), entry("slot1")), GPUS, DRIVER)
    assert len({group.daemon.id for group in apart if group.daemon}) == 2


def test_the_claims_entry_wins_over_the_classs_and_a_later_one_over_an_earlier() -> None:
    by_class = entry(source="FromClass", strategy="TimeSlicing")
    groups = groups_of(claim(by_class, entry("slot0"), entry("slot0", strategy="TimeSlicing")), GPUS, DRIVER)
    assert {each.request: group.sharing.strategy for group in groups for each in group.devices} == {
        "slot0": "TimeSlicing",
        "slot1": "TimeSlicing",
    }
    groups = groups_of(claim(entry("slot0"), by_class), GPUS, DRIVER)
    assert {group.sharing.strategy for group in groups} == {"MPS", "TimeSlicing"}


def test_entries_of_other_drivers_are_passed_over() -> None:
    (group,) = groups_of(claim(entry("slot0", driver="tpu.example.com", wrong=1)), GPUS, DRIVER)
    assert group.daemon is None


def test_unknown_devices_and_unallocated_claims_are_refused() -> None:
    with pytest.raises(Refused, match='allocatable not found for device "gpu-1"'):
        groups_of(claim(), GPUS[:1], DRIVER)
    with pytest.raises(Refused, match="not yet allocated"):
        groups_of({"metadata": {"name": "m-0", "uid": "u"}}, GPUS, DRIVER)


def test_a_container_that_sees_two_daemons_is_complained_about() -> None:
    groups = groups_of(claim(entry("slot0"), entry("slot1")), GPUS, DRIVER)
    assert collision(groups, [pod("slot0"), pod("slot1", name="talker")], "m-0") is None
    assert "pod 'both' would see 2 MPS control daemons" in (
        collision(groups, [pod("slot0", "slot1", name="both")], "m-0") or ""
    )
    assert collision(groups, [pod(None)], "m-0")
    assert collision(groups, [pod(None)], "another-claim") is None


def test_one_daemon_for_both_is_no_collision() -> None:
    assert collision(groups_of(claim(entry("slot0", "slot1")), GPUS, DRIVER), [pod("slot0", "slot1")], "m-0") is None


def test_a_claim_made_from_a_template_is_found_in_the_pods_status() -> None:
    consumer = pod(None)
    consumer["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "t"}]
    consumer["status"] = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "m-0"}]}
    assert collision(groups_of(claim(entry("slot0"), entry("slot1")), GPUS, DRIVER), [consumer], "m-0")


def test_a_request_shows_its_own_gpu_alone() -> None:
    edits = edits_of(claim(), 1)
    assert edits["env"] == [f"NVIDIA_VISIBLE_DEVICES={GPUS[1].uuid}"]
    mount, memory = edits["mounts"]
    assert (memory["hostPath"], memory["containerPath"]) == ("/memory", "/run/invented-gpu-memory")
    assert mount["containerPath"] == f"/run/invented-gpus/1-{GPUS[1].uuid}.json"
    assert mount["options"][0] == "ro"


def test_mps_adds_the_pipe_folder_the_shared_memory_and_the_check() -> None:
    edits = edits_of(claim(entry("slot0", "slot1")), 0)
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in edits["env"]
    mounts = {each["containerPath"]: each["hostPath"] for each in edits["mounts"]}
    assert mounts["/dev/shm"] == edits_mount(1, "/dev/shm")
    assert mounts["/tmp/nvidia-mps"].endswith("/pipe")
    assert edits["hooks"][0]["hookName"] == "createRuntime"


def edits_mount(request: int, path: str) -> str:
    edits = edits_of(claim(entry("slot0", "slot1")), request)
    return str({each["containerPath"]: each["hostPath"] for each in edits["mounts"]}[path])


def test_the_hook_counts_the_daemons_of_a_container() -> None:
    def config(*daemons: str) -> dict[str, Any]:
        hooks = [{"path": "/python", "args": ["/python", "-I", "/x/one_daemon.py", each]} for each in daemons]
        return {"hooks": {"createRuntime": [*hooks, {"path": "/other", "args": ["/other", "x"]}]}}

    assert daemons_of(config("a", "a")) == {"a"}
    assert daemons_of(config("a", "b")) == {"a", "b"}
    assert daemons_of({}) == set()


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "plugin", tmp_path / "cdi", "/usr/bin/python3", GPUS)


def test_prepared_claims_survive_a_restart_and_unprepare_is_idempotent(state: State, tmp_path: Path) -> None:
    kept = state.prepare("ns", "m-0", "uid-1", groups_of(claim(), GPUS, DRIVER))
    again = State(state.folder, state.cdi, "/usr/bin/python3", GPUS)
    assert again.prepared("uid-1") == kept
    for _ in range(2):
        again.unprepare("uid-1")
    assert again.prepared("uid-1") is None
    assert list(state.cdi.iterdir()) == []
    events = [json.loads(line)["event"] for line in (state.folder / "ledger.jsonl").read_text().splitlines()]
    assert events == ["prepared", "unprepared"]


def test_a_device_is_not_prepared_for_two_claims(state: State) -> None:
    state.prepare("ns", "m-0", "uid-1", groups_of(claim(), GPUS, DRIVER))
    state.check_free("uid-1", groups_of(claim(), GPUS, DRIVER))
    with pytest.raises(Refused, match="requested device gpu-0 is already allocated to different claim uid-1"):
        state.check_free("uid-2", groups_of(claim(uid="uid-2"), GPUS, DRIVER))
