"""Kubernetes events about an OmniModel, for `kubectl describe`."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum

from omni_operator.api import names
from omni_operator.kube.client import EVENTS, Client, Manifest

MAX_NOTE = 1024
"""The API's limit on an event's note, bytes."""


class EventType(StrEnum):
    """Kubernetes' two event types."""

    NORMAL = "Normal"
    WARNING = "Warning"


async def emit(client: Client, model: Manifest, kind: EventType, reason: str, note: str, now: datetime) -> None:
    """Say one thing that happened. Raises KubeError."""
    meta = model["metadata"]
    regarding = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": meta["name"],
        "namespace": meta["namespace"],
        "uid": meta["uid"],
    }
    await client.create(
        EVENTS,
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}", "namespace": meta["namespace"]},
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": f"{names.GROUP}/{names.MANAGER}",
            "reportingInstance": names.MANAGER,
            "type": kind,
            "reason": reason,
            "action": "Reconcile",
            "note": note[:MAX_NOTE],
            "regarding": regarding,
        },
    )
