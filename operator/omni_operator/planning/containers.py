"""A pod's containers, as the API tells of them: which is the operator's own, and what keeps the pod from running.

Users and admission webhooks add containers, and kubelet sorts them all by name: ours is found by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omni_operator.api import names
from omni_operator.planning.cluster import recalled

_ON_THE_WAY = ("", "ContainerCreating", "PodInitializing")
"""What a container waits for while nothing is wrong."""


def own_name(pod: Mapping[str, Any]) -> str:
    """Name of the operator's container, which is that of the component; empty where someone took the label off."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return str(labels.get(names.COMPONENT_LABEL, ""))


def own_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Status of the operator's container; empty before it has any."""
    found = list(_statuses(pod, "containerStatuses"))
    return next((row for row in found if row.get("name") == own_name(pod)), found[0] if len(found) == 1 else {})


def waits_for(pod: Mapping[str, Any]) -> str:
    """Why the operator's container does not run, or else why another one does not, such as an init container that it
    waits for; the reason's word comes first."""
    own = _waiting(own_status(pod))
    if own.get("reason", "") not in _ON_THE_WAY:
        return _words(own)
    others = (*_statuses(pod, "initContainerStatuses"), *_statuses(pod, "containerStatuses"))
    for row in others:
        other = _waiting(row)
        if other.get("reason", "") not in _ON_THE_WAY:
            return _words(other, f"container {row.get('name')}")
    return _words(own)


def unhealthy_gpus(pod: Mapping[str, Any]) -> Iterator[str]:
    """GPUs of the operator's container that are no longer fit for use (ResourceHealthStatus, beta since Kubernetes
    1.36). A user may have claimed other devices, which no restart of the GPU's stages gives back."""
    for row in own_status(pod).get("allocatedResourcesStatus") or []:
        if not _of_gpus(str(row.get("name", "")), pod):
            continue
        for device in row.get("resources") or []:
            if device.get("health") == "Unhealthy":
                said = " ".join((device.get("message") or "").split())
                yield ": ".join(filter(None, (device.get("resourceID"), said)))


def _of_gpus(name: str, pod: Mapping[str, Any]) -> bool:
    """`claim:gpus/slot0`, or the device plugin's resource that the pod was made for."""
    if name.startswith("claim:"):
        return name.removeprefix("claim:").split("/")[0] == names.POD_CLAIM
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    plugin = recalled(annotations.get(names.DEVICE_PLUGIN_ANNOTATION) or "")
    return plugin is not None and plugin.resource == name


def _statuses(pod: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    found = (pod.get("status") or {}).get(kind)
    yield from (row for row in found or () if isinstance(row, Mapping))


def _waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return (status.get("state") or {}).get("waiting") or {}


def _words(waiting: Mapping[str, Any], which: str = "") -> str:
    return ": ".join(filter(None, (waiting.get("reason"), which, waiting.get("message"))))
