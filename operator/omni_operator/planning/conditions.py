"""What is observed → the OmniModel's status. Pure: the clock comes in as an argument."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from omni_operator.api import names
from omni_operator.api.enums import ConditionStatus, Enforcer
from omni_operator.api.quantities import MIB, format_bytes, format_percent
from omni_operator.api.reasons import ConditionType, Reason
from omni_operator.api.v1alpha1 import Condition, GroupRestartStatus, OmniModelStatus, SlotStatus, StageStatus
from omni_operator.planning.faults import GroupRestart, delay, held_until
from omni_operator.planning.layout import Layout, Problem, Severity, SlotUse, Stage, refused
from omni_operator.planning.measured import kept
from omni_operator.planning.observed import FRONT, Device, Observed, ObservedPod
from omni_operator.planning.refusals import driver_refusal, refusal_words
from omni_operator.planning.rollout import Rendered, serves, turn
from omni_operator.planning.rules.sharing import enforced_by
from omni_operator.planning.starting import PLACEMENT_GRACE, being_freed, late, late_words, misplaced
from omni_operator.planning.targets import PodTarget, ReplicaTarget
from omni_stage.contract import ExitCode

DEFAULT_PORT = 8000
MAX_MESSAGE = 1000
"""Characters of a reason or message taken over from elsewhere."""
READY = "Ready"
"""State of a stage that takes requests."""

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


NO_DEVICE = re.compile("cannot allocate all claims")
"""The scheduler's words where no free device matches a claim (its plugin DynamicResources)."""
NO_RESTARTS: Mapping[int, GroupRestart] = {}


@dataclass(frozen=True)
class Verdict:
    """One condition before its transition time is known."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True)
class Subject:
    """The OmniModel that a status is for."""

    name: str
    namespace: str
    generation: int
    replicas: int
    port: int = DEFAULT_PORT


def refused_status(
    subject: Subject, problems: tuple[Problem, ...], observed: Observed, previous: OmniModelStatus, now: datetime
) -> OmniModelStatus:
    """The status of a declaration that is not accepted. What runs of an earlier generation is left as it is."""
    worst = problems[0]
    message = " ".join(_with_path(problem) for problem in problems if problem.severity is not Severity.WARNING)
    no = Verdict(ConditionStatus.FALSE, worst.reason, message)
    running = sorted({pod.generation for pod in observed.pods.values()})
    kept = f" Generation {running[-1]} is left running." if running else " Nothing was created."
    verdicts = {
        ConditionType.ACCEPTED: no,
        ConditionType.READY: Verdict(ConditionStatus.FALSE, worst.reason, message + kept),
    }
    if not running:
        for kind in (ConditionType.SCHEDULED, ConditionType.SHARING_READY, ConditionType.STAGES_READY):
            verdicts[kind] = Verdict(ConditionStatus.FALSE, worst.reason, "The declaration is not accepted.")
    kept_status = previous if running else OmniModelStatus()
    return kept_status.model_copy(
        update={
            "observed_generation": subject.generation,
            "conditions": _conditions(verdicts, previous, subject.generation, now),
            "stages_ready": previous.stages_ready if running else "0/0",
            "replicas": len({pod.replica for pod in observed.pods.values()}),
            "ready_replicas": previous.ready_replicas if running else 0,
            "selector": _selector(subject),
            "revision": previous.revision,
            "revision_hash": previous.revision_hash,
        }
    )


def status(
    subject: Subject,
    layout: Layout,
    problems: tuple[Problem, ...],
    targets: tuple[ReplicaTarget, ...],
    rendered: Rendered,
    observed: Observed,
    previous: OmniModelStatus,
    now: datetime,
    history: Mapping[int, GroupRestart] = NO_RESTARTS,
) -> OmniModelStatus:
    """The status of an accepted declaration."""
    before = {(row.name, row.replica): row for row in previous.stages or [] if row.state == READY}
    stages = [row for target in targets for row in _stage_rows(target, layout, observed, before, now)]
    current = {child.name: child.hash for children in rendered.replicas.values() for child in children}
    serving = [target for target in targets if serves(target, observed)]
    verdicts = {
        ConditionType.ACCEPTED: _accepted(layout, problems),
        ConditionType.SCHEDULED: _not_advertised(problems) or _scheduled(layout, targets, observed, history, now),
        ConditionType.SHARING_READY: _sharing_ready(layout, targets, observed),
        ConditionType.STAGES_READY: _stages_ready(stages),
    }
    verdicts[ConditionType.READY] = _ready(subject, verdicts, targets, serving, observed, current)
    return OmniModelStatus(
        observed_generation=subject.generation,
        conditions=_conditions(verdicts, previous, subject.generation, now),
        pipeline=f"{layout.pipeline}/{layout.variant}",
        sharing=f"{layout.strategy}/{layout.backend}" if layout.slots else "None",
        stages=stages,
        stages_ready=f"{sum(row.state == 'Ready' for row in stages)}/{len(stages)}",
        gpus=[row for target in targets for row in _slot_rows(target, layout, observed)],
        gpu_summary=", ".join(f"{slot}: {format_percent(SlotUse(layout, slot).total)}" for slot in layout.slots),
        endpoint=f"http://{names.service_name(subject.name)}.{subject.namespace}.svc:{subject.port}/v1",
        replicas=len({pod.replica for pod in observed.pods.values()}),
        ready_replicas=len(serving),
        selector=_selector(subject),
        revision=previous.revision,
        revision_hash=previous.revision_hash,
    )


def restart_history(status: OmniModelStatus) -> Mapping[int, GroupRestart]:
    """What the status remembers of restarts of whole groups. A time that someone else wrote nonsense into is none."""
    found: dict[int, GroupRestart] = {}
    for row in status.group_restarts or []:
        with suppress(ValueError):
            last = datetime.fromisoformat(row.last_restart)
            last = last if last.tzinfo else last.replace(tzinfo=UTC)
            found[row.replica] = GroupRestart(row.replica, max(0, row.restarts), last, row.reason, row.node or "")
    return found


def with_restarts(status: OmniModelStatus, history: Mapping[int, GroupRestart]) -> OmniModelStatus:
    """The same status with the restarts of whole groups."""
    rows = [
        GroupRestartStatus(
            replica=restart.replica,
            restarts=restart.count,
            last_restart=stamp(restart.last),
            reason=restart.reason[:MAX_MESSAGE],
            node=restart.node or None,
        )
        for restart in history.values()
    ]
    return status.model_copy(update={"group_restarts": rows or None})


def with_write_failure(
    status: OmniModelStatus, problem: Problem, previous: OmniModelStatus, generation: int, now: datetime
) -> OmniModelStatus:
    """The same status, with Ready saying that the cluster refused a write that the user can do something about."""
    verdicts = {ConditionType(c.type): Verdict(c.status, Reason(c.reason), c.message) for c in status.conditions or []}
    verdicts[ConditionType.READY] = Verdict(ConditionStatus.FALSE, problem.reason, str(problem)[:MAX_MESSAGE])
    return status.model_copy(update={"conditions": _conditions(verdicts, previous, generation, now)})


def _with_path(problem: Problem) -> str:
    """The problem with the path of the field to change in front, unless it starts with it anyway."""
    text = str(problem)
    return text if text.startswith(problem.field) else f"{problem.field}: {text}"


def _accepted(layout: Layout, problems: tuple[Problem, ...]) -> Verdict:
    assert not refused(problems)
    slots = ", ".join(
        f"GPU {slot}: {format_percent(SlotUse(layout, slot).total)} of {format_percent(layout.limit)}"
        for slot in layout.slots
    )
    where = f"on {layout.card.name}: {slots}" if layout.card and slots else "without GPUs"
    warnings = "".join(f" Warning ({p.reason}): {p}" for p in problems)
    return Verdict(ConditionStatus.TRUE, Reason.ACCEPTED, f"{len(layout.stages)} stages fit {where}.{warnings}")


def _not_advertised(problems: tuple[Problem, ...]) -> Verdict | None:
    """What the cluster lacks for pods that have no node yet."""
    lacking = [problem for problem in problems if problem.reason is Reason.RESOURCE_NOT_ADVERTISED]
    return Verdict(ConditionStatus.FALSE, lacking[0].reason, str(lacking[0])[:MAX_MESSAGE]) if lacking else None


def _scheduled(
    layout: Layout,
    targets: tuple[ReplicaTarget, ...],
    observed: Observed,
    history: Mapping[int, GroupRestart],
    now: datetime,
) -> Verdict:
    wanted = [name for target in targets for name in (*(pod.name for pod in target.pods), target.front)]
    waiting = [name for name in wanted if (pod := observed.pods.get(name)) is None or pod.node is None]
    if not waiting:
        return Verdict(ConditionStatus.TRUE, Reason.SCHEDULED, f"All {len(wanted)} pods have a node.")
    for target in targets:
        verdict = _unplaced(target, observed, history.get(target.index), now) or _without_node(layout, target, observed)
        if verdict is not None:
            return verdict
    message = f"{len(wanted) - len(waiting)} of {len(wanted)} pods have a node; waiting: {_few(waiting)}."
    return Verdict(ConditionStatus.FALSE, Reason.WAITING_FOR_TURN, message)


def _unplaced(target: ReplicaTarget, observed: Observed, restart: GroupRestart | None, now: datetime) -> Verdict | None:
    """A replica of which one pod found no room on the node of the others."""
    if restart is not None and restart.node and now < held_until(restart):
        wait = f"{delay(restart.count).total_seconds():.0f} s"
        words = f"{restart.reason}; its GPUs were released, and the replica is placed anew after {wait}"
        return Verdict(ConditionStatus.FALSE, Reason.UNSCHEDULABLE, words[:MAX_MESSAGE])
    for found in misplaced(target, observed, now):
        grace = f"{PLACEMENT_GRACE.total_seconds():.0f} s"
        words = f"{found.words}; unless that ends within {grace} of its turn, its replica's GPUs are released"
        return Verdict(ConditionStatus.FALSE, Reason.UNSCHEDULABLE, words[:MAX_MESSAGE])
    return None


def _without_node(layout: Layout, target: ReplicaTarget, observed: Observed) -> Verdict | None:
    """A pod for which there is no node at all: it waits for a GPU, or for anything else that a node must have."""
    asked_for = {group.name: group.slots for group in target.groups}
    gpus = {pod.name: len(asked_for.get(pod.group or "", ())) for pod in target.pods if pod.slots}
    for name in (*(pod.name for pod in target.pods), target.front):
        seen = observed.pods.get(name)
        if seen is None or seen.node is not None or not seen.unschedulable:
            continue
        if not (gpus.get(name) and NO_DEVICE.search(seen.unschedulable)):
            words = f"{name}: {seen.unschedulable}"
            return Verdict(ConditionStatus.FALSE, Reason.UNSCHEDULABLE, words[:MAX_MESSAGE])
        size = f" of {layout.card.memory // MIB}Mi or more" if layout.card else ""
        many = "1 GPU" if gpus[name] == 1 else f"{gpus[name]} GPUs on one node,"
        words = f"{name} waits for {many}{size}; the scheduler finds none that is free and fits: {seen.unschedulable}"
        return Verdict(ConditionStatus.FALSE, Reason.WAITING_FOR_GPU, words[:MAX_MESSAGE])
    return None


def _sharing_ready(layout: Layout, targets: tuple[ReplicaTarget, ...], observed: Observed) -> Verdict:
    if not layout.divided_slots():
        return Verdict(ConditionStatus.TRUE, Reason.SHARING_READY, "No GPU is shared.")
    sharing = [pod for target in targets for pod in target.pods if set(pod.slots) & set(layout.divided_slots())]
    started = [pod for pod in sharing if (seen := observed.pods.get(pod.name)) and seen.ready and not seen.deleting]
    for pod in sharing:
        seen = observed.pods.get(pod.name)
        known = driver_refusal(seen)
        if seen is not None and known is not None:
            message = refusal_words(seen).removeprefix(f"{known.reason}: ")
            return Verdict(ConditionStatus.FALSE, known.reason, f"{pod.name}: {message}"[:MAX_MESSAGE])
    for pod in sharing:
        if problem := _mps_problem(layout, pod, observed.pods.get(pod.name)):
            message = problem.removeprefix(f"{Reason.MPS_NOT_ATTACHED}: ")
            return Verdict(ConditionStatus.FALSE, Reason.MPS_NOT_ATTACHED, f"{pod.name}: {message}.")
    if len(started) == len(sharing):
        message = f"{len(sharing)} pods share their GPUs {_how_shared(layout)}."
        return Verdict(ConditionStatus.TRUE, Reason.SHARING_READY, message)
    return Verdict(
        ConditionStatus.FALSE, Reason.STARTING, f"{len(started)} of {len(sharing)} pods that share a GPU run on it."
    )


def _how_shared(layout: Layout) -> str:
    """In which way, and who keeps whom within its share. Under MPS a stage is ready only while attached."""
    shared = set(layout.divided_slots())
    by: dict[Enforcer, list[str]] = {}
    for stage in layout.stages:
        enforcer = enforced_by(layout, stage)
        if enforcer is not None and shared & set(stage.slots):
            by.setdefault(enforcer, []).append(stage.name)
    kept = {
        Enforcer.MPS: "which keeps each process within its limit",
        Enforcer.ENGINE: "the engines keep {} within their shares",
        Enforcer.NOTHING: "nothing keeps {} within gpuMemory",
    }
    parts = [kept[enforcer].format(", ".join(by[enforcer])) for enforcer in Enforcer if enforcer in by]
    way = "through MPS, each attached to the control daemon of its GPU" if layout.mps else "by time-slicing"
    return "; ".join([f"{way}, {parts[0]}" if Enforcer.MPS in by else way, *parts[Enforcer.MPS in by :]])


def _stages_ready(stages: list[StageStatus]) -> Verdict:
    waiting = [row for row in stages if row.state != READY]
    if not waiting:
        return Verdict(ConditionStatus.TRUE, Reason.STAGES_READY, f"All {len(stages)} stages are ready.")
    failed = next((row for row in waiting if row.state in ("Restarting", "Failed")), None)
    reason = _failure_reason(failed) if failed is not None else Reason.STARTING
    told = [f"{row.name} ({row.state}{': ' + row.reason if row.reason else ''})" for row in waiting]
    message = f"{len(stages) - len(waiting)} of {len(stages)} stages are ready; waiting for {_few(told)}."
    return Verdict(ConditionStatus.FALSE, reason, message)


def _failure_reason(row: StageStatus) -> Reason:
    word = (row.reason or "").split(":", 1)[0]
    return Reason(word) if word in {str(reason) for reason in Reason} else Reason.STAGE_FAILED


def _ready(
    subject: Subject,
    verdicts: Mapping[ConditionType, Verdict],
    targets: tuple[ReplicaTarget, ...],
    serving: list[ReplicaTarget],
    observed: Observed,
    current: Mapping[str, str],
) -> Verdict:
    if not targets:
        return Verdict(ConditionStatus.FALSE, Reason.SCALED_TO_ZERO, "spec.replicas is 0.")
    outdated = [pod.name for pod in observed.pods.values() if current.get(pod.name) != pod.hash]
    if outdated:
        message = f"{len(outdated)} pods are not of generation {subject.generation} yet: {_few(sorted(outdated))}."
        return Verdict(ConditionStatus.FALSE, Reason.REPLACING, message)
    for verdict in _by_weight(verdicts):
        if verdict.status is not ConditionStatus.TRUE and verdict.reason is not Reason.WAITING_FOR_TURN:
            return Verdict(ConditionStatus.FALSE, verdict.reason, verdict.message)
    if len(serving) < len(targets):
        fronts = [t.front for t in targets if t not in serving]
        return Verdict(ConditionStatus.FALSE, Reason.FRONT_NOT_READY, f"Waiting for {_few(fronts)}.")
    return Verdict(ConditionStatus.TRUE, Reason.READY, f"Serving on {len(serving)} of {len(targets)} replicas.")


def _by_weight(verdicts: Mapping[ConditionType, Verdict]) -> list[Verdict]:
    """What may keep an OmniModel from being Ready, what says most first: a stage whose time to start has passed says
    more than what it waits for."""
    stages = verdicts[ConditionType.STAGES_READY]
    rest = [verdicts[ConditionType.SCHEDULED], stages, verdicts[ConditionType.SHARING_READY]]
    return [stages, *rest] if stages.reason is Reason.STAGE_START_TIMEOUT else rest


def _stage_rows(
    target: ReplicaTarget,
    layout: Layout,
    observed: Observed,
    before: Mapping[tuple[str, int], StageStatus],
    now: datetime,
) -> Iterable[StageStatus]:
    devices = _devices(target, observed)
    by_process = {pod.process: pod for pod in target.pods}
    for stage in layout.stages:
        pod = by_process[stage.process]
        seen = observed.pods.get(pod.name)
        state, reason = _state(target, pod, seen, observed, now)
        if seen is not None and state == "Starting" and (problem := _mps_problem(layout, pod, seen)):
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


def _mps_problem(layout: Layout, pod: PodTarget, seen: ObservedPod | None) -> str:
    """Why a pod that shares a GPU under MPS is no client of a control daemon, by its own word; empty where it is one,
    or was not asked."""
    shares = layout.mps and bool(set(pod.slots) & set(layout.shared_slots()))
    problem = seen.page.mps_problem if seen is not None and seen.page is not None else ""
    return f"{Reason.MPS_NOT_ATTACHED}: sharing is MPS, but {problem}" if shares and problem else ""


def _state(
    target: ReplicaTarget, pod: PodTarget, seen: ObservedPod | None, observed: Observed, now: datetime
) -> tuple[str, str]:
    """State and what it waits for, or why it failed."""
    if seen is None:
        return "Missing", ""
    if seen.deleting:
        return "Terminating", seen.disruption
    if seen.ended:
        return "Failed", _exit_reason(seen)
    if seen.ready:
        return READY, ""
    if seen.gated:
        return "Gated", _gate_reason(target, pod, observed, now)
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
    return f"{reason}: {words} (exit code {pod.exit_code}){said}"[:MAX_MESSAGE]


def _devices(target: ReplicaTarget, observed: Observed) -> Mapping[str, Device]:
    claims = [claim for group in target.groups if (claim := observed.claims.get(group.name)) is not None]
    return {request: device for claim in claims for request, device in (claim.devices or {}).items()}


def _slot_rows(target: ReplicaTarget, layout: Layout, observed: Observed) -> Iterable[SlotStatus]:
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


def _conditions(
    verdicts: Mapping[ConditionType, Verdict], previous: OmniModelStatus, generation: int, now: datetime
) -> list[Condition]:
    """All conditions in their order. One that was not judged stays as it was; a time changes with the status only."""
    before = {condition.type: condition for condition in previous.conditions or []}
    result: list[Condition] = []
    for kind in ConditionType:
        old = before.get(kind)
        verdict = verdicts.get(kind)
        if verdict is None:
            if old is not None:
                result.append(old)
            continue
        since = old.last_transition_time if old is not None and old.status == verdict.status else stamp(now)
        result.append(
            Condition(
                type=kind,
                status=verdict.status,
                reason=verdict.reason,
                message=verdict.message,
                observed_generation=generation,
                last_transition_time=since,
            )
        )
    return result


def stamp(now: datetime) -> str:
    """A time as Kubernetes writes it, RFC 3339 with full seconds."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _selector(subject: Subject) -> str:
    return f"{names.MODEL_LABEL}={subject.name},{names.COMPONENT_LABEL}={FRONT}"


def _few(items: list[str], most: int = 4) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
