"""A ResourceClaim: one request per slot of a group, and how the GPU of a shared slot is shared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omni_operator.api import names
from omni_operator.api.quantities import MIB
from omni_operator.api.v1alpha1 import GpusSpec
from omni_operator.planning.cluster import DRIVER
from omni_operator.planning.layout import Layout
from omni_operator.planning.observed import ChildKind
from omni_operator.planning.rollout import Child
from omni_operator.planning.rules.sharing import mps_limit
from omni_operator.planning.targets import GroupTarget, joined_slots
from omni_operator.rendering.template import Owner, child


def request_name(slot: int) -> str:
    """Name of a slot's request within the claim."""
    return f"slot{slot}"


def resource_claim(owner: Owner, layout: Layout, gpus: GpusSpec, replica: int, group: GroupTarget) -> Child:
    """One claim, so that its pods land on one node and the stages of a slot meet on one GPU."""
    spec: dict[str, Any] = {"devices": {"requests": [_request(slot, layout, gpus) for slot in group.slots]}}
    config = list(_sharing_config(layout, group))
    if config:
        spec["devices"]["config"] = config
    return child(ChildKind.RESOURCE_CLAIM, group.name, owner, spec, {names.REPLICA_LABEL: str(replica)})


def _request(slot: int, layout: Layout, gpus: GpusSpec) -> dict[str, Any]:
    selectors = []
    if layout.card is not None:
        least = f"{layout.card.memory // MIB}Mi" if layout.card.memory % MIB == 0 else str(layout.card.memory)
        memory = f"device.capacity['{DRIVER}'].memory"
        selectors.append({"cel": {"expression": f"{memory}.compareTo(quantity('{least}')) >= 0"}})
    if gpus.selector is not None:
        selectors.append({"cel": {"expression": gpus.selector}})
    exactly: dict[str, Any] = {"deviceClassName": gpus.device_class_name or DRIVER}
    if selectors:
        exactly["selectors"] = selectors
    return {"name": request_name(slot), "exactly": exactly}


def _sharing_config(layout: Layout, group: GroupTarget) -> Iterator[dict[str, Any]]:
    """How the shared slots of a group are shared. Time-slicing is what a shared claim does without an entry.

    An entry has one MPS daemon, and two daemons in one container collide: so there is one for each set of slots that
    some process sees together.
    """
    shared = set(layout.shared_slots())
    for joined in joined_slots(layout):
        if not shared & set(joined) or not set(joined) <= set(group.slots):
            continue
        if layout.mps:
            yield _config(joined, {"strategy": "MPS", **_daemon_settings(layout, joined)})
        elif layout.interval is not None:
            sliced = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": str(layout.interval)}}
            yield _config(joined, sliced)


def _daemon_settings(layout: Layout, joined: tuple[int, ...]) -> dict[str, Any]:
    """The largest limit of a process is the daemon's default; each container's environment tightens it to its own."""
    limits = [
        limit // MIB
        for use in (layout.uses[slot] for slot in joined)
        for process in use.processes
        if (limit := mps_limit(layout, use, process)) is not None
    ]
    settings: dict[str, Any] = {"defaultPinnedDeviceMemoryLimit": f"{max(limits)}Mi"} if limits else {}
    return {"mpsConfig": settings} if settings else {}


def _config(slots: tuple[int, ...], sharing: dict[str, Any]) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    return {
        "requests": [request_name(slot) for slot in slots],
        "opaque": {"driver": DRIVER, "parameters": parameters},
    }
