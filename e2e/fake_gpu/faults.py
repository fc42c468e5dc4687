"""PURE but for `read` and `write`: faults that a test asks for, in `faults.json` of the plugin's folder.

    {"gpu-0": {"taint": {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"}, "healthy": false, …}}

The plugins look at the file several times a second. The DRA driver puts the taint into its ResourceSlice and tells the
kubelet of the health (`allocatedResourcesStatus` of the pods); the device plugin has no taints and tells of the health.

NVIDIA's DRA driver of August 2026 (`cmd/gpu-kubelet-plugin/device_health.go`, gate NVMLDeviceHealthCheck) taints with
the keys below and the effect NoSchedule: it evicts nothing by itself, and does not serve the kubelet's health API. Here
NoExecute stands for an administrator's DeviceTaintRule, and the health API for drivers that have it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILE = "faults.json"
XID, GPU_LOST = "gpu.nvidia.com/xid", "gpu.nvidia.com/gpu-lost"


@dataclass(frozen=True)
class Fault:
    """What is wrong with a GPU. `effect` is that of its taint: NoSchedule, NoExecute, None, or empty for no taint."""

    effect: str = "NoSchedule"
    key: str = XID
    value: str = "79"
    healthy: bool = False
    message: str = "Xid 79: GPU has fallen off the bus"

    def taints(self) -> list[dict[str, Any]]:
        """As a device of a ResourceSlice has them."""
        return [{"key": self.key, "value": self.value, "effect": self.effect}] if self.effect else []


@dataclass(frozen=True)
class Faults:
    """The faults by the GPU's device name (`gpu-0`)."""

    of: Mapping[str, Fault] = field(default_factory=dict)

    def healthy(self, gpu: str) -> bool:
        return gpu not in self.of or self.of[gpu].healthy

    def message(self, gpu: str) -> str:
        return self.of[gpu].message if gpu in self.of else ""

    def taints(self, gpu: str) -> list[dict[str, Any]]:
        return self.of[gpu].taints() if gpu in self.of else []


def read(folder: Path) -> Faults:
    """The faults asked for in a plugin's folder; none where the file is missing."""
    try:
        return Faults({name: Fault(**raw) for name, raw in json.loads((folder / FILE).read_text()).items()})
    except FileNotFoundError:
        return Faults()


def write(folder: Path, faults: Faults) -> None:
    """Ask for these faults and no others; the file appears whole."""
    unfinished = folder / f".{FILE}.unfinished"
    unfinished.write_text(json.dumps({name: asdict(fault) for name, fault in faults.of.items()}))
    unfinished.replace(folder / FILE)
