"""Faults that a test asks for: what is published of them, and what is not."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import Fault
from e2e.fake_gpu.faults import Faults, read, write
from e2e.fake_gpu.profiles import gpus_of
from e2e.fake_gpu.slices import resource_slice, same_devices

GPUS = gpus_of("n", 2, "h100-80gb")


def test_a_fault_is_the_same_after_its_file_and_none_is_none(tmp_path: Path) -> None:
    assert read(tmp_path) == Faults()
    faults = Faults({"gpu-1": Fault("NoExecute", message="lost")})
    write(tmp_path, faults)
    assert read(tmp_path) == faults
    assert (faults.healthy("gpu-0"), faults.healthy("gpu-1")) == (True, False)


def test_a_taint_stands_on_its_own_device_alone_with_nvidias_key() -> None:
    published = resource_slice("n", "uid", GPUS, 1, Faults({"gpu-1": Fault()}))["spec"]["devices"]
    assert "taints" not in published[0]
    assert published[1]["taints"] == [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]


def test_a_fault_may_have_no_taint() -> None:
    published = resource_slice("n", "uid", GPUS, 1, Faults({"gpu-1": Fault(effect="")}))["spec"]["devices"]
    assert not any("taints" in each for each in published)


def test_when_a_taint_was_added_is_no_difference_and_its_effect_is() -> None:
    wanted = resource_slice("n", "uid", GPUS, 1, Faults({"gpu-1": Fault()}))
    published = resource_slice("n", "uid", GPUS, 1, Faults({"gpu-1": Fault()}))
    published["spec"]["devices"][1]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    assert same_devices(published, wanted)
    assert not same_devices(published, resource_slice("n", "uid", GPUS, 1))
    assert not same_devices(published, resource_slice("n", "uid", GPUS, 1, Faults({"gpu-1": Fault("NoExecute")})))
