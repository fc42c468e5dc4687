"""A real Kubernetes for tests, built from pinned Go modules and run in namespaces of its own.

    with control_plane(folder) as kubeconfig: ...        # API only: no root, no containers, seconds
    cluster = up("omni", Gpus(2, "h100-80gb")); down("omni")   # a node with containers and invented GPUs: root
    up("omni", Gpus(1, "h100-80gb"), nodes=2).node(1).set_gpus(Gpus(1, "l40s"))   # two nodes

Where `KUBECONFIG` names another cluster, the command line uses that one and builds nothing; `external_kubeconfig` says
so to tests.
"""

from __future__ import annotations

import os
from pathlib import Path

from e2e.cluster.binaries import binaries
from e2e.cluster.cluster import Cluster, down, running, up
from e2e.cluster.control_plane import control_plane
from e2e.cluster.errors import ClusterError
from e2e.cluster.gpus import Gpus
from e2e.cluster.layout import CLUSTERS, DEFAULT_NAME, Instance
from e2e.cluster.node import Node
from e2e.cluster.progress import Progress
from e2e.fake_gpu.device_plugin import DevicePluginConfig
from e2e.fake_gpu.faults import Fault

__all__ = [
    "DEFAULT_NAME",
    "Cluster",
    "ClusterError",
    "DevicePluginConfig",
    "Fault",
    "Gpus",
    "Instance",
    "Node",
    "Progress",
    "binaries",
    "control_plane",
    "down",
    "external_kubeconfig",
    "refuse_external",
    "running",
    "up",
]


def external_kubeconfig() -> Path | None:
    """The kubeconfig of the cluster that the user already has (`KUBECONFIG`), which is then used instead of ours.

    One that we wrote ourselves, and that the user exported, is ours.
    """
    value = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if not value or Path(value).resolve().is_relative_to(CLUSTERS.resolve()):
        return None
    return Path(value)


def refuse_external(doing: str) -> None:
    """Raise ClusterError where `KUBECONFIG` names a cluster that is not ours, whose nodes are out of reach."""
    if external := external_kubeconfig():
        raise ClusterError(
            f"KUBECONFIG names a cluster that is not ours ({external}), so we cannot {doing}",
            "push images to a registry which that cluster reaches, or unset KUBECONFIG",
        )
