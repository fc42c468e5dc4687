"""A running OmniModel as data for programs: what `status --output json` and `yaml` print. Field names are stable."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from omni_operator.cli.live_model import LiveModel, LiveStage
from omni_operator.cli.live_text import headline
from omni_operator.cli.live_waiting import waiting


def report(model: LiveModel) -> dict[str, Any]:
    """One OmniModel. Memory is in bytes; `measuredBytes` is null where it is not known."""
    return {
        **summary(model),
        "pipeline": model.pipeline or None,
        "sharing": model.sharing or None,
        "revision": model.revision,
        "endpoint": model.endpoint or None,
        "conditions": [
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "since": _time(condition.since),
            }
            for condition in model.conditions
        ],
        "gpus": [
            {
                "slot": card.slot,
                "replica": card.replica,
                "uuid": card.uuid or None,
                "product": card.product or None,
                "node": card.node or None,
                "capacity": card.capacity or None,
                "givenAway": card.given_away,
                "stages": list(card.stages),
            }
            for card in model.cards
        ],
        "stages": [_stage(row) for row in model.stages],
        "fronts": [_stage(row) for row in model.fronts],
        "startingOrder": [
            {
                "replica": queue.replica,
                "slots": list(queue.slots),
                "stages": [row.name for row in queue.queue],
                "waitingFor": queue.now.name if queue.now else None,
            }
            for queue in waiting(model)
        ],
        "groupRestarts": [
            {"replica": row.replica, "restarts": row.count, "last": _time(row.last), "reason": row.reason}
            for row in model.restarts
        ],
        "notes": list(model.notes),
    }


def reports(models: Sequence[LiveModel]) -> dict[str, Any]:
    """Many OmniModels, in short."""
    return {"omniModels": [summary(model) for model in models]}


def summary(model: LiveModel) -> dict[str, Any]:
    """The short form of one."""
    reason, message = headline(model)
    return {
        "name": model.name,
        "namespace": model.namespace,
        "generation": model.generation,
        "observedGeneration": model.observed_generation,
        "ready": model.ready,
        "reason": str(reason),
        "message": message,
        "stagesReady": model.stages_ready or None,
        "gpuSummary": model.gpu_summary or None,
    }


def _stage(row: LiveStage) -> dict[str, Any]:
    page = row.page
    return {
        "name": row.name,
        "replica": row.replica,
        "pod": row.pod,
        "state": row.state,
        "reason": row.why or None,
        "slots": list(row.slots),
        "gpuMemory": row.gpu_memory or None,
        "gpuMemoryBytes": row.gpu_memory_bytes,
        "measuredBytes": row.measured,
        "hostMemoryBytes": row.host_memory,
        "enforcedBy": row.kept_by or None,
        "mpsAttached": page.mps_attached if page is not None else None,
        "restarts": row.restarts,
        "startedAt": _time(row.started),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
