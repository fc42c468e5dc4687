"""What the invented GPUs publish, and which configurations their driver refuses, in NVIDIA's words."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.fake_gpu.gpu_config import API_VERSION, Driver, Mps, Refused, Sharing, decode, judge, memory_limits, quantity
from e2e.fake_gpu.profiles import PROFILES, gpus_of
from e2e.fake_gpu.slices import device_class, resource_slice

ALL_ON = Driver({"MPSSupport": True, "TimeSlicingSettings": True})
GIB = 1024**3


def config(**sharing: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": sharing}


def refusal(parameters: dict[str, Any], driver: Driver = ALL_ON) -> str:
    with pytest.raises(Refused) as raised:
        judge(decode(parameters) or Sharing(), driver, ["slot0"], "uid-1")
    return str(raised.value)


@pytest.mark.parametrize(
    ("profile", "memory"), [("h100-80gb", 81559), ("h200", 143771), ("h20", 97871), ("l40s", 46068)]
)
def test_cards_have_the_memory_that_their_driver_reports(profile: str, memory: int) -> None:
    assert PROFILES[profile].memory == memory


def test_a_slice_is_shaped_as_nvidias() -> None:
    published = resource_slice("n", "uid", gpus_of("n", 2, "h100-80gb"), generation=3)
    assert published["spec"]["pool"] == {"name": "n", "generation": 3, "resourceSliceCount": 1}
    first = published["spec"]["devices"][0]
    assert first["name"] == "gpu-0"
    assert first["capacity"] == {"memory": {"value": "81559Mi"}}
    attributes = first["attributes"]
    assert attributes["productName"] == {"string": "NVIDIA H100 80GB HBM3"}
    assert attributes["cudaComputeCapability"] == {"version": "9.0.0"}
    assert attributes["type"] == {"string": "gpu"}
    assert {"uuid", "brand", "architecture", "driverVersion", "cudaDriverVersion"} <= set(attributes)


def test_uuids_are_stable_and_differ_between_nodes_and_devices() -> None:
    uuids = {gpu.uuid for node in ("a", "b") for gpu in gpus_of(node, 4, "h20")}
    assert len(uuids) == 8
    assert gpus_of("a", 1, "h20")[0].uuid in uuids


def test_the_class_chooses_the_drivers_gpus() -> None:
    expression = device_class()["spec"]["selectors"][0]["cel"]["expression"]
    assert expression == "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"


def test_no_sharing_needs_no_gate() -> None:
    decoded = decode({"apiVersion": API_VERSION, "kind": "GpuConfig"})
    assert decoded == Sharing()
    judge(decoded, Driver(), ["slot0"], "uid-1")


def test_mps_settings_are_read_exactly() -> None:
    mps = {"defaultActiveThreadPercentage": 70, "defaultPinnedDeviceMemoryLimit": "48Gi", "multiUser": True}
    decoded = decode(config(strategy="MPS", mpsConfig=mps))
    assert decoded == Sharing("MPS", None, Mps(70, 48 * GIB, {}, True))


@pytest.mark.parametrize(
    ("sharing", "words"),
    [
        ({"strategy": "MPS", "limit": 1}, 'strict decoding error: unknown field "sharing.limit"'),
        ({"strategy": "MPS", "mpsConfig": {"x": 1}}, 'unknown field "sharing.mpsConfig.x"'),
        ({"strategy": 5}, "json: cannot unmarshal number into Go struct field sharing.strategy"),
        ({"strategy": "Vgpu"}, "unknown GPU sharing strategy: Vgpu"),
        ({}, "unknown GPU sharing strategy: "),
        ({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}, "must not be greater than 100"),
        ({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": -1}}, "must not be negative"),
        ({"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "4 GB"}}, "quantities must match"),
        ({"strategy": "MPS", "timeSlicingConfig": {"interval": "Long"}}, "cannot use TimeSlicingConfig with the 'MPS'"),
        ({"strategy": "TimeSlicing", "mpsConfig": {}}, "cannot use MpsConfig with the 'TimeSlicing' strategy"),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Tiny"}}, "unknown time-slice interval: Tiny"),
    ],
)
def test_bad_configurations_are_refused(sharing: dict[str, Any], words: str) -> None:
    assert words in refusal(config(**sharing))


@pytest.mark.parametrize("strategy", ["MPS", "TimeSlicing"])
def test_a_gate_that_is_off_is_refused_in_the_words_of_the_release(strategy: str) -> None:
    parameters = config(strategy=strategy)
    assert refusal(parameters, Driver()).endswith(f"unknown GPU sharing strategy: {strategy}")
    assert "feature gate is not enabled" in refusal(parameters, Driver(release="0.4"))


@pytest.mark.parametrize("gate", ["ConsumableShares", "DynamicMIG"])
def test_mps_is_refused_where_it_is_not_supported(gate: str) -> None:
    assert "MPS" in refusal(config(strategy="MPS"), Driver({"MPSSupport": True, gate: True}))


def test_an_unknown_kind_is_refused_and_another_devices_is_passed_over() -> None:
    with pytest.raises(Refused, match='no kind "Config" is registered'):
        decode({"apiVersion": API_VERSION, "kind": "Config"})
    assert decode({"apiVersion": API_VERSION, "kind": "MigDeviceConfig"}) is None


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("48Gi", 48 * GIB), ("1.5Gi", 3 * GIB // 2), ("100", 100), (100, 100), ("1k", 1000), ("1e3", 1000), ("100m", 1)],
)
def test_quantities_are_exact(text: Any, bytes_: int) -> None:
    assert quantity(text, "limit") == bytes_


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1Q", "1.2.3", "1ee3", True])
def test_what_is_no_quantity_is_refused(text: Any) -> None:
    with pytest.raises(Refused, match="quantities must match"):
        quantity(text, "limit")


def test_a_devices_own_limit_wins_by_uuid_or_index() -> None:
    limits = memory_limits(Mps(memory_limit=16 * GIB, device_limits={"1": 8 * GIB}), ["GPU-a", "GPU-b"])
    assert limits == {"GPU-a": "16384M", "GPU-b": "8192M"}
    for key, words in (("2", "invalid device index: 2"), ("GPU-c", "unable to parse key as an integer")):
        with pytest.raises(Refused, match=words):
            memory_limits(Mps(device_limits={key: GIB}), ["GPU-a", "GPU-b"])
    with pytest.raises(Refused, match="value set too low"):
        memory_limits(Mps(memory_limit=1000), ["GPU-a"])
