"""What the API hands out of an OmniModel and its pods → the values that are shown.

Pure, and tolerant on purpose: an operator newer or older than this command line may have written the status, so that
what is missing or unknown is left out, and nothing is refused. Text of the cluster loses its control characters, since
it ends up on a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from omni_operator.api import names
from omni_operator.cli.documents import BadInput, Document, Place
from omni_operator.cli.judge import Judgement, Options, judge
from omni_operator.cli.live_model import (
    READY,
    LiveCard,
    LiveCondition,
    LiveModel,
    LiveRestart,
    LiveStage,
    Manifest,
    Page,
    Readings,
)
from omni_operator.planning.containers import own_status, waits_for
from omni_operator.planning.observed import FRONT

MOST_TEXT = 2000


def live_model(manifest: Manifest, readings: Readings) -> LiveModel:
    """The values of an object as the API hands it out."""
    meta, status = manifest["metadata"], _mapping(manifest.get("status"))
    judgement, unread = _judged(manifest)
    pods = {pod["metadata"]["name"]: pod for pod in readings.pods}
    return LiveModel(
        name=meta["name"],
        namespace=meta["namespace"],
        generation=meta.get("generation", 0),
        observed_generation=status.get("observedGeneration"),
        created=time_of(meta.get("creationTimestamp")),
        deleting="deletionTimestamp" in meta,
        pipeline=clean(status.get("pipeline")),
        sharing=clean(status.get("sharing")),
        endpoint=clean(status.get("endpoint")),
        stages_ready=clean(status.get("stagesReady")),
        gpu_summary=clean(status.get("gpuSummary")),
        conditions=tuple(_condition(row) for row in _rows(status, "conditions")),
        stages=tuple(_stage(row, pods, readings.pages) for row in _rows(status, "stages")),
        fronts=tuple(_front(pod) for pod in readings.pods if _label(pod, names.COMPONENT_LABEL) == FRONT),
        cards=tuple(_card(row) for row in _rows(status, "gpus")),
        judgement=judgement,
        running=_judged({**manifest, "spec": readings.accepted})[0] if readings.accepted else None,
        notes=(*readings.notes, *unread),
        restarts=tuple(_restart(row) for row in _rows(status, "groupRestarts")),
        revision=_number(status.get("revision")),
    )


def page_of(answer: Manifest) -> Page:
    """The page of a supervisor out of its answer."""
    memory = answer.get("memory_bytes")
    return Page(
        state=clean(answer.get("state")),
        detail=clean(answer.get("detail")),
        memory=memory if isinstance(memory, int) and memory >= 0 else None,
        on_gpu=answer.get("memory_kind") == "torch",
        mps_attached=bool(_mapping(answer.get("mps")).get("attached")),
    )


def clean(value: Any) -> str:
    """Text of the cluster on one line, without what would move the cursor or change colours."""
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text[:MOST_TEXT].split()))


def time_of(text: Any) -> datetime | None:
    """A time of the API; None where there is none."""
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def running_since(pod: Manifest) -> datetime | None:
    """When the container that runs now was started; None where none runs."""
    return time_of(_mapping(_mapping(own_status(pod).get("state")).get("running")).get("startedAt"))


def _judged(manifest: Manifest) -> tuple[Judgement | None, tuple[str, ...]]:
    name = manifest["metadata"]["name"]
    try:
        return judge(Document(manifest, {(): Place(f"omnimodel/{name}")}), Options()), ()
    except BadInput as problem:  # A field that another version of the resource has.
        return None, (f"No cards are drawn, since this kubectl-omni cannot read the spec: {clean(problem.message)}.",)


def _condition(row: Manifest) -> LiveCondition:
    return LiveCondition(
        clean(row.get("type")),
        clean(row.get("status")),
        clean(row.get("reason")),
        clean(row.get("message")),
        time_of(row.get("lastTransitionTime")),
    )


def _stage(row: Manifest, pods: Mapping[str, Manifest], pages: Mapping[str, Page]) -> LiveStage:
    pod = clean(row.get("pod"))
    return LiveStage(
        name=clean(row.get("name")),
        replica=row.get("replica", 0),
        pod=pod,
        state=clean(row.get("state")),
        reason=clean(row.get("reason")),
        slots=tuple(row.get("slots") or ()),
        gpu_memory=clean(row.get("gpuMemory")),
        gpu_memory_bytes=row.get("gpuMemoryBytes"),
        kept_by=clean(row.get("enforcedBy")),
        reported=_reported(row),
        restarts=row.get("restarts", 0),
        started=running_since(pods.get(pod, {})),
        page=pages.get(pod),
    )


def _reported(row: Manifest) -> Page | None:
    memory = _number(row.get("measuredMemoryBytes"))
    return None if memory is None else Page("", "", memory, row.get("measuredMemoryKind") == "torch", True)


def _restart(row: Manifest) -> LiveRestart:
    return LiveRestart(
        _number(row.get("replica")) or 0,
        _number(row.get("restarts")) or 0,
        time_of(row.get("lastRestart")),
        clean(row.get("reason")),
    )


def _number(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _front(pod: Manifest) -> LiveStage:
    """The status has no row for fronts, so the pod is read."""
    status = _mapping(pod.get("status"))
    ready = any(row.get("type") == READY and row.get("status") == "True" for row in _rows(status, "conditions"))
    unscheduled = next((r for r in _rows(status, "conditions") if r.get("reason") == "Unschedulable"), {})
    reason = waits_for(pod) or unscheduled.get("message", "")
    node = _mapping(pod.get("spec")).get("nodeName")
    return LiveStage(
        name=FRONT,
        replica=_replica(pod),
        pod=pod["metadata"]["name"],
        state=READY if ready else "Starting" if node else "Pending",
        reason="" if ready else clean(reason),
        restarts=own_status(pod).get("restartCount", 0),
        started=running_since(pod),
    )


def _card(row: Manifest) -> LiveCard:
    return LiveCard(
        slot=row.get("slot", 0),
        replica=row.get("replica", 0),
        given_away=clean(row.get("givenAway")),
        stages=tuple(clean(stage) for stage in row.get("stages") or ()),
        uuid=clean(row.get("uuid")),
        product=clean(row.get("product")),
        node=clean(row.get("node")),
        capacity=clean(row.get("capacity")),
    )


def _replica(pod: Manifest) -> int:
    text = _label(pod, names.REPLICA_LABEL)
    return int(text) if text.isascii() and text.isdigit() else 0


def _label(pod: Manifest, key: str) -> str:
    return str(_mapping(pod["metadata"].get("labels")).get(key) or "")


def _mapping(value: Any) -> Manifest:
    return value if isinstance(value, Mapping) else {}


def _rows(holder: Manifest, key: str) -> list[Manifest]:
    value = holder.get(key)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
