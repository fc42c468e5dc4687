"""What is observed → what each condition says. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from omni_operator.api.enums import ConditionStatus, Enforcer
from omni_operator.api.quantities import MIB, format_percent
from omni_operator.api.reasons import ConditionType, Reason
from omni_operator.api.v1alpha1 import StageStatus
from omni_operator.planning.faults import GroupRestart, delay, held_until
from omni_operator.planning.layout import Layout, Problem, SlotUse, refused
from omni_operator.planning.observed import Observed
from omni_operator.planning.refusals import driver_refusal, refusal_words
from omni_operator.planning.rules.sharing import enforced_by
from omni_operator.planning.rules.wording import few
from omni_operator.planning.starting import PLACEMENT_GRACE, misplaced
from omni_operator.planning.status_rows import MAX_MESSAGE, READY, mps_problem
from omni_operator.planning.targets import ReplicaTarget

NAMED = 4
"""Pods or stages that a message names."""
NO_DEVICE = re.compile("cannot allocate all claims")
"""The scheduler's words where no free device matches a claim (its plugin DynamicResources)."""


@dataclass(frozen=True)
class Verdict:
    """One condition before its transition time is known."""

    status: ConditionStatus
    reason: Reason
    message: str


def accepted(layout: Layout, problems: tuple[Problem, ...]) -> Verdict:
    """Accepted, of a declaration that is: what is given away, and every warning."""
    assert not refused(problems)
    slots = ", ".join(
        f"GPU {slot}: {format_percent(SlotUse(layout, slot).total)} of {format_percent(layout.limit)}"
        for slot in layout.slots
    )
    where = f"on {layout.card.name}: {slots}" if layout.card and slots else "without GPUs"
    warnings = "".join(f" Warning ({p.reason}): {p}" for p in problems)
    return Verdict(ConditionStatus.TRUE, Reason.ACCEPTED, f"{len(layout.stages)} stages fit {where}.{warnings}")


def not_advertised(problems: tuple[Problem, ...]) -> Verdict | None:
    """What the cluster lacks for pods that have no node yet."""
    lacking = [problem for problem in problems if problem.reason is Reason.RESOURCE_NOT_ADVERTISED]
    return Verdict(ConditionStatus.FALSE, lacking[0].reason, str(lacking[0])[:MAX_MESSAGE]) if lacking else None


def scheduled(
    layout: Layout,
    targets: tuple[ReplicaTarget, ...],
    observed: Observed,
    history: Mapping[int, GroupRestart],
    now: datetime,
) -> Verdict:
    """Scheduled: whether every pod has a node, and what is in the way."""
    wanted = [name for target in targets for name in (*(pod.name for pod in target.pods), target.front)]
    waiting = [name for name in wanted if (pod := observed.pods.get(name)) is None or pod.node is None]
    if not waiting:
        return Verdict(ConditionStatus.TRUE, Reason.SCHEDULED, f"All {len(wanted)} pods have a node.")
    for target in targets:
        verdict = _unplaced(target, observed, history.get(target.index), now) or _without_node(layout, target, observed)
        if verdict is not None:
            return verdict
    message = f"{len(wanted) - len(waiting)} of {len(wanted)} pods have a node; waiting: {few(waiting, NAMED)}."
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


def sharing_ready(layout: Layout, targets: tuple[ReplicaTarget, ...], observed: Observed) -> Verdict:
    """SharingReady: every pod that shares a GPU is ready, and under MPS so attached."""
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
        if problem := mps_problem(layout, pod, observed.pods.get(pod.name)):
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


def stages_ready(stages: list[StageStatus]) -> Verdict:
    """StagesReady: every stage is ready, or which are not."""
    waiting = [row for row in stages if row.state != READY]
    if not waiting:
        return Verdict(ConditionStatus.TRUE, Reason.STAGES_READY, f"All {len(stages)} stages are ready.")
    failed = next((row for row in waiting if row.state in ("Restarting", "Failed")), None)
    reason = _failure_reason(failed) if failed is not None else Reason.STARTING
    told = [f"{row.name} ({row.state}{': ' + row.reason if row.reason else ''})" for row in waiting]
    message = f"{len(stages) - len(waiting)} of {len(stages)} stages are ready; waiting for {few(told, NAMED)}."
    return Verdict(ConditionStatus.FALSE, reason, message)


def _failure_reason(row: StageStatus) -> Reason:
    word = (row.reason or "").split(":", 1)[0]
    return Reason(word) if word in {str(reason) for reason in Reason} else Reason.STAGE_FAILED


def ready(
    generation: int,
    verdicts: Mapping[ConditionType, Verdict],
    targets: tuple[ReplicaTarget, ...],
    serving: list[ReplicaTarget],
    observed: Observed,
    current: Mapping[str, str],
) -> Verdict:
    """Ready: what the other conditions say of it, and whether every replica serves this generation."""
    if not targets:
        return Verdict(ConditionStatus.FALSE, Reason.SCALED_TO_ZERO, "spec.replicas is 0.")
    outdated = [pod.name for pod in observed.pods.values() if current.get(pod.name) != pod.hash]
    if outdated:
        message = f"{len(outdated)} pods are not of generation {generation} yet: {few(sorted(outdated), NAMED)}."
        return Verdict(ConditionStatus.FALSE, Reason.REPLACING, message)
    for verdict in _by_weight(verdicts):
        if verdict.status is not ConditionStatus.TRUE and verdict.reason is not Reason.WAITING_FOR_TURN:
            return Verdict(ConditionStatus.FALSE, verdict.reason, verdict.message)
    if len(serving) < len(targets):
        fronts = [t.front for t in targets if t not in serving]
        return Verdict(ConditionStatus.FALSE, Reason.FRONT_NOT_READY, f"Waiting for {few(fronts, NAMED)}.")
    return Verdict(ConditionStatus.TRUE, Reason.READY, f"Serving on {len(serving)} of {len(targets)} replicas.")


def _by_weight(verdicts: Mapping[ConditionType, Verdict]) -> list[Verdict]:
    """What may keep an OmniModel from being Ready, what says most first: a stage whose time to start has passed says
    more than what it waits for."""
    stages = verdicts[ConditionType.STAGES_READY]
    rest = [verdicts[ConditionType.SCHEDULED], stages, verdicts[ConditionType.SHARING_READY]]
    return [stages, *rest] if stages.reason is Reason.STAGE_START_TIMEOUT else rest
