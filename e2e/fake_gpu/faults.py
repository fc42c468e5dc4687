"""Faults that a test asks for: `faults.json` in the plugin's folder says which GPUs fail, and how.

    {"gpu-0": {"taint": {"key": "…", "value": "…", "effect": "NoExecute"}, "health": "Unhealthy", "message": "Xid 79"}}

The plugins look at it several times a second: the DRA driver puts the taint into its ResourceSlice and tells the
kubelet of the health; the device plugin tells the kubelet of the health alone, since it has no taints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "faults.json"


@dataclass(frozen=True)
class Faults:
    """What is wrong, by the GPU's device name (`gpu-0`)."""

    of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def unhealthy(self, gpu: str) -> bool:
        return self.of.get(gpu, {}).get("health") == "Unhealthy"

    def message(self, gpu: str) -> str:
        return str(self.of.get(gpu, {}).get("message", ""))

    def taints(self, gpu: str) -> list[dict[str, Any]]:
        taint = self.of.get(gpu, {}).get("taint")
        return [dict(taint)] if taint else []


def read(folder: Path) -> Faults:
    """The faults asked for in the plugin's folder; none where the file is missing."""
    try:
        return Faults(json.loads((folder / FILE).read_text()))
    except FileNotFoundError:
        return Faults()
