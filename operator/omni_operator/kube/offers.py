"""What the cluster offers of GPUs: its device classes, and the nodes that advertise them through the device plugin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from omni_operator.kube.client import DEVICE_CLASSES, NODES, Client, KubeError, Manifest
from omni_operator.planning.cluster import Cluster, GpuNode

FRESH_SECONDS = 15.0
"""For how long an answer serves: a thousand OmniModels that wait for a GPU must not list the nodes a thousand times."""
VENDOR = "nvidia.com/"


class Offers:
    """Reads them where they are needed, and remembers them for a moment."""

    def __init__(self) -> None:
        self._read = 0.0
        self._cluster: Cluster | None = None
        self._reading = asyncio.Lock()

    async def cluster(self, client: Client) -> Cluster | None:
        """Two calls, or none. None: we may not read it. Raises KubeError."""
        async with self._reading:
            if self._read and time.monotonic() - self._read < FRESH_SECONDS:
                return self._cluster
            try:
                classes, nodes = await asyncio.gather(
                    client.list_all(DEVICE_CLASSES, None), client.list_all(NODES, None)
                )
                self._cluster = Cluster(frozenset(each["metadata"]["name"] for each in classes), _gpu_nodes(nodes))
            except KubeError as error:
                if error.status not in (403, 404):
                    raise
                self._cluster = None
            self._read = time.monotonic()
            return self._cluster


def _gpu_nodes(nodes: Iterable[Manifest]) -> tuple[GpuNode, ...]:
    found = []
    for node in nodes:
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        resources = {
            name: int(count) for name, count in allocatable.items() if name.startswith(VENDOR) and count.isdecimal()
        }
        resources = {name: count for name, count in resources.items() if count > 0}
        if resources:
            found.append(GpuNode(node["metadata"]["name"], resources, node["metadata"].get("labels") or {}))
    return tuple(found)
