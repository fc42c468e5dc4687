"""PURE: the cards that can be invented, with the figures that their real driver reports."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True)
class Profile:
    """A card. `memory` is the whole memory in MiB that NVML reports, not the marketing size."""

    product: str
    memory: int
    architecture: str
    capability: str
    brand: str = "Nvidia"

    @property
    def memory_bytes(self) -> int:
        return self.memory * MIB


PROFILES = {
    "h100-80gb": Profile("NVIDIA H100 80GB HBM3", 81559, "Hopper", "9.0.0"),
    "h200": Profile("NVIDIA H200", 143771, "Hopper", "9.0.0"),
    "h20": Profile("NVIDIA H20", 97871, "Hopper", "9.0.0"),
    "rtx-5090": Profile("NVIDIA GeForce RTX 5090", 32607, "Blackwell", "12.0.0", "GeForce"),
    "l40s": Profile("NVIDIA L40S", 46068, "Ada Lovelace", "8.9.0"),
}
DRIVER_VERSION = "580.105.8"
CUDA_DRIVER_VERSION = "13.0.0"


@dataclass(frozen=True)
class Gpu:
    """One invented GPU of a node. Its minor number names it and orders it, as on a real node."""

    node: str
    minor: int
    profile: Profile

    @property
    def name(self) -> str:
        return f"gpu-{self.minor}"

    @property
    def uuid(self) -> str:
        """Looks like NVIDIA's, and stays the same for the same node and minor number."""
        digest = hashlib.sha256(f"{self.node}/{self.minor}/{self.profile.product}".encode()).hexdigest()
        return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{0x17 + self.minor:02x}:00.0"

    @property
    def pcie_root(self) -> str:
        return f"pci0000:{0x16 + self.minor:02x}"


def gpus_of(node: str, count: int, profile: str) -> list[Gpu]:
    """The node's GPUs, in the order of their minor numbers."""
    return [Gpu(node, minor, PROFILES[profile]) for minor in range(count)]
