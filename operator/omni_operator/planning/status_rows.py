"""What is observed of each stage and of each GPU → the rows of the status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from omni_operator.api.quantities import format_bytes, format_percent
from omni_operator.api.reasons import Reason
from omni_operator.api.v1alpha1 import SlotStatus, StageStatus
from omni_operator.planning.layout import Layout, SlotUse, Stage
from omni_operator.planning.measured import kept
from omni_operator.planning.observed import Device, Observed, ObservedPod
from omni_operator.planning.refusals import driver_refusal, refusal_words
from omni_operator.planning.rollout import turn
from omni_operator.planning.rules.sharing import enforced_by
from omni_operator.planning.starting import being_freed, late, late_words
from omni_operator.planning.targets import PodTarget, ReplicaTarget
from omni_stage.contract import ExitCode

MAX_MESSAGE = 1000
"""Characters of a reason or message taken over from elsewhere."""
READY = "Ready"
"""State of a stage that takes requests."""
SILENT = "its engine was ready and says nothing any more; its supervisor ends it if that lasts"
EXIT_REASONS: Mapping[int, tuple[Reason, str]] = {
    ExitCode.OUT_OF_BUDGET: (
        Reason.OUT_OF_BUDGET,
        "needs more GPU memory than its share; raise gpuMemory or lower its load",
    ),
    ExitCode.CUDA_FAULT: (Reason.GPU_FAULT, "a fatal CUDA error or a lost MPS server"),
    ExitCode.START_TIMEOUT: (Reason.STAGE_START_TIMEOUT, "was not ready within its startupTimeout"),
    ExitCode.BAD_CONFIG: (Reason.BAD_CONFIG, "its configuration is not usable"),
}
"""Other ends are `StageFailed`."""


def stage_rows(
    target: ReplicaTarget,
    layout: Layout,
    observed: Observed,
    before: Mapping[tuple[str, int], StageStatus],
    now: datetime,
) -> Iterable[StageStatus]:
    """A row for each stage of a replica. `before` are the rows of stages that were ready."""
    devices = _devices(target, observed)
    by_process = {pod.process: pod for pod in target.pods}
    for stage in layout.stages:
        pod = by_process[stage.process]
        seen = observed.pods.get(pod.name)
        state, reason = _state(target, pod, seen, observed, now)
        if seen is not None and state == "Starting" and (problem := mps_problem(layout, pod, seen)):
            reason = problem
        found = [devices.get(f"slot{slot}") for slot in stage.slots]
        uuids = [device.uuid for device in found if device is not None and device.uuid is not None]
        yield StageStatus(
            name=stage.name,
            replica=target.index,
            pod=pod.name,
            state=state,
            reason=reason or None,
            slots=list(stage.slots) or None,
            gpu_uuids=uuids or None,
            gpu_memory=str(stage.budget) if stage.budget else None,
            gpu_memory_bytes=stage.budget.bytes_of(layout.card.memory) if stage.budget and layout.card else None,
            enforced_by=enforced_by(layout, stage),
            **_measured(stage, seen if state == READY else None, before.get((stage.name, target.index))),
            restarts=seen.restarts if seen else 0,
        )


def _measured(stage: Stage, seen: ObservedPod | None, before: StageStatus | None) -> Mapping[str, Any]:
    """The fields of a stage's measured memory; none of a stage that is not ready."""
    if seen is None:
        return {}
    old = (before.measured_memory_bytes, before.measured_memory_kind) if before is not None else (None, None)
    size, kind = kept(seen.page, len(stage.slots), old)
    return {"measured_memory_bytes": size, "measured_memory_kind": kind}


def mps_problem(layout: Layout, pod: PodTarget, seen: ObservedPod | None) -> str:
    """Why a pod that shares a GPU under MPS is no client of a control daemon, by its own word; empty where it is one,
    or was not asked."""
    problem = seen.page.mps_problem if seen is not None and seen.page is not None else ""
    return (
        f"{Reason.MPS_NOT_ATTACHED}: sharing is MPS, but {problem}" if problem and layout.under_mps(pod.slots) else ""
    )


def _state(
    target: ReplicaTarget, pod: PodTarget, seen: ObservedPod | None, observed: Observed, now: datetime
) -> tuple[str, str]:
    """State and what it waits for, or why it failed."""
    if seen is None:
        return "Missing", ""
    if seen.deleting:
        return "Terminating", seen.disruption
    if seen.ended or seen.stopped:
        return "Failed", _exit_reason(seen)
    if seen.ready:
        return READY, ""
    if seen.gated:
        return "Gated", _gate_reason(target, pod, observed, now)
    return _starting(pod, seen, now)


def _starting(pod: PodTarget, seen: ObservedPod, now: datetime) -> tuple[str, str]:
    """State and reason of a pod whose turn has come, and that is not ready."""
    if seen.been_ready and seen.page is not None and seen.page.silent:
        return "Failed", f"{Reason.STAGE_FAILED}: {SILENT}"
    if seen.restarts or seen.exit_code is not None:
        return "Restarting", _exit_reason(seen)
    if driver_refusal(seen):
        return "Failed", refusal_words(seen)[:MAX_MESSAGE]
    if late(pod, seen, now):
        return "Failed", late_words(pod, seen)[:MAX_MESSAGE]
    if seen.node is None:
        return "Pending", seen.unschedulable[:MAX_MESSAGE]
    return "Starting", (refusal_words(seen) or seen.waiting)[:MAX_MESSAGE]


def _gate_reason(target: ReplicaTarget, pod: PodTarget, observed: Observed, now: datetime) -> str:
    other = turn(target, pod, observed)
    if other is None:
        return "waits until the GPUs that it had are given back" if being_freed(target, pod, observed, now) else ""
    shared = sorted(set(other.slots) & set(pod.slots))
    on = f" on GPU {shared[0]}" if shared else " to get its GPU"
    return f"waits for {other.process}{on}"


def _exit_reason(pod: ObservedPod) -> str:
    if pod.exit_code is None:
        return pod.waiting[:MAX_MESSAGE]
    reason, words = EXIT_REASONS.get(pod.exit_code, (Reason.STAGE_FAILED, "its engine ended"))
    said = f": {pod.exit_message}" if pod.exit_message else ""
    stays = "; it stays down until its spec changes or its pod is deleted" if pod.stopped else ""
    return f"{reason}: {words} (exit code {pod.exit_code}{stays}){said}"[:MAX_MESSAGE]


def _devices(target: ReplicaTarget, observed: Observed) -> Mapping[str, Device]:
    claims = [claim for group in target.groups if (claim := observed.claims.get(group.name)) is not None]
    return {request: device for claim in claims for request, device in (claim.devices or {}).items()}


def slot_rows(target: ReplicaTarget, layout: Layout, observed: Observed) -> Iterable[SlotStatus]:
    """A row for each GPU slot of a replica."""
    devices = _devices(target, observed)
    for slot in layout.slots:
        use = SlotUse(layout, slot)
        device = devices.get(f"slot{slot}")
        there = [seen.node for pod in target.pods if slot in pod.slots and (seen := observed.pods.get(pod.name))]
        yield SlotStatus(
            slot=slot,
            replica=target.index,
            uuid=device.uuid if device else None,
            product=device.product if device else None,
            node=device.node if device else next((node for node in there if node), None),
            capacity=format_bytes(device.memory) if device and device.memory else None,
            given_away=format_percent(use.total),
            stages=[stage.name for stage in use.stages],
        )
