"""A ResourceClaim: one request per slot of a group, and how the GPU of a shared slot is shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from omni_operator.api import names
from omni_operator.api.quantities import MIB, QuantityError, parse_amount
from omni_operator.api.v1alpha1 import GpusSpec
from omni_operator.planning.cluster import DRIVER
from omni_operator.planning.layout import Layout
from omni_operator.planning.observed import ChildKind, DaemonLimits
from omni_operator.planning.rollout import Child
from omni_operator.planning.rules.sharing import mps_limit
from omni_operator.planning.targets import GroupTarget, joined_slots
from omni_operator.rendering.template import Owner, child

LIMIT = "defaultPinnedDeviceMemoryLimit"


def request_name(slot: int) -> str:
    """Name of a slot's request within the claim."""
    return f"slot{slot}"


def resource_claim(owner: Owner, layout: Layout, gpus: GpusSpec, replica: int, group: GroupTarget) -> Child:
    """One claim, so that its pods land on one node and the stages of a slot meet on one GPU."""
    requests = [_request(slot, layout, gpus) for slot in group.slots]
    spec = _spec(requests, list(_sharing_config(layout, group, with_limits=True)))
    decides = _spec(requests, list(_sharing_config(layout, group, with_limits=False)))
    labels = {names.REPLICA_LABEL: str(replica)}
    found = child(ChildKind.RESOURCE_CLAIM, group.name, owner, spec, labels, hashed=decides)
    return replace(found, daemon_limits=daemon_limits(spec))


def daemon_limits(spec: Mapping[str, Any]) -> DaemonLimits:
    """The limits of a claim's MPS daemons. What cannot be read is not ours, and limits nothing that we know of."""
    found: dict[str, int] = {}
    for entry in (spec.get("devices") or {}).get("config") or []:
        with suppress(KeyError, TypeError, QuantityError):
            limit = parse_amount(entry["opaque"]["parameters"]["sharing"]["mpsConfig"][LIMIT])
            found |= dict.fromkeys(entry["requests"], limit)
    return found


def _spec(requests: list[dict[str, Any]], config: list[dict[str, Any]]) -> dict[str, Any]:
    return {"devices": {"requests": requests, **({"config": config} if config else {})}}


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


def _sharing_config(layout: Layout, group: GroupTarget, with_limits: bool) -> Iterator[dict[str, Any]]:
    """How the shared slots of a group are shared. Time-slicing is what a shared claim does without an entry.

    An entry has one MPS daemon, and two daemons in one container collide: so there is one for each set of slots that
    some process sees together.
    """
    shared = set(layout.shared_slots())
    for joined in joined_slots(layout):
        if not shared & set(joined) or not set(joined) <= set(group.slots):
            continue
        if layout.mps:
            yield _config(joined, {"strategy": "MPS", **_daemon_settings(layout, joined, with_limits)})
        elif layout.interval is not None:
            sliced = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": str(layout.interval)}}
            yield _config(joined, sliced)


def _daemon_settings(layout: Layout, joined: tuple[int, ...], with_limits: bool) -> dict[str, Any]:
    """The largest limit of a process is the daemon's default; each container's environment tightens it to its own."""
    limits = [
        limit // MIB
        for use in (layout.uses[slot] for slot in joined)
        for process in use.processes
        if (limit := mps_limit(layout, use, process)) is not None
    ]
    settings: dict[str, Any] = {LIMIT: f"{max(limits)}Mi"} if limits and with_limits else {}
    return {"mpsConfig": settings} if settings else {}


def _config(slots: tuple[int, ...], sharing: dict[str, Any]) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    return {
        "requests": [request_name(slot) for slot in slots],
        "opaque": {"driver": DRIVER, "parameters": parameters},
    }
