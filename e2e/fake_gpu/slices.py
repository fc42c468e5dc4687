"""PURE: the ResourceSlice and the DeviceClass that NVIDIA's DRA driver publishes for whole GPUs.

Names, attributes and capacity follow `cmd/gpu-kubelet-plugin/deviceinfo.go` and the driver's chart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from e2e.fake_gpu.faults import Faults
from e2e.fake_gpu.profiles import CUDA_DRIVER_VERSION, DRIVER_VERSION, Gpu

DRIVER = "gpu.nvidia.com"
NO_FAULTS = Faults()


def device(gpu: Gpu, taints: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """One GPU as a device of a ResourceSlice."""
    profile = gpu.profile
    strings = {
        "type": "gpu",
        "uuid": gpu.uuid,
        "productName": profile.product,
        "brand": profile.brand,
        "architecture": profile.architecture,
        "resource.kubernetes.io/pciBusID": gpu.pci_bus_id,
        "resource.kubernetes.io/pcieRoot": gpu.pcie_root,
    }
    versions = {
        "cudaComputeCapability": profile.capability,
        "driverVersion": DRIVER_VERSION,
        "cudaDriverVersion": CUDA_DRIVER_VERSION,
    }
    attributes: dict[str, Any] = {name: {"string": value} for name, value in strings.items()}
    attributes |= {name: {"version": value} for name, value in versions.items()}
    capacity = {"memory": {"value": f"{profile.memory}Mi"}}
    found: dict[str, Any] = {"name": gpu.name, "attributes": attributes, "capacity": capacity}
    return {**found, "taints": list(taints)} if taints else found


def slice_name(node: str) -> str:
    return f"{node}-{DRIVER}"


def resource_slice(
    node: str, node_uid: str, gpus: Sequence[Gpu], generation: int, faults: Faults = NO_FAULTS
) -> dict[str, Any]:
    """The node's one slice; it goes when the node does."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": slice_name(node), "ownerReferences": [owner]},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": [device(gpu, faults.taints(gpu.name)) for gpu in gpus],
        },
    }


def same_devices(published: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a published slice says all that is wanted; when a taint was added is the API server's to say."""

    def plain(device: Mapping[str, Any]) -> dict[str, Any]:
        taints = [{k: v for k, v in each.items() if k != "timeAdded"} for each in device.get("taints", [])]
        return {**device, "taints": taints}

    one, other = (each["spec"].get("devices") or [] for each in (published, wanted))
    return list(map(plain, one)) == list(map(plain, other))


def device_class() -> dict[str, Any]:
    """The class that claims name, as the driver's chart makes it."""
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": "nvidia.com/gpu"},
    }
