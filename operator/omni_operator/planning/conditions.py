"""What is observed → the OmniModel's status. Pure: the clock comes in as an argument."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from omni_operator.api import names
from omni_operator.api.enums import ConditionStatus
from omni_operator.api.quantities import format_percent
from omni_operator.api.reasons import ConditionType, Reason
from omni_operator.api.v1alpha1 import Condition, GroupRestartStatus, OmniModelStatus
from omni_operator.planning.faults import GroupRestart
from omni_operator.planning.layout import Layout, Problem, Severity, SlotUse
from omni_operator.planning.observed import FRONT, Observed
from omni_operator.planning.rollout import Rendered, serves
from omni_operator.planning.status_rows import MAX_MESSAGE, READY, slot_rows, stage_rows
from omni_operator.planning.targets import ReplicaTarget
from omni_operator.planning.verdicts import (
    Verdict,
    accepted,
    not_advertised,
    ready,
    scheduled,
    sharing_ready,
    stages_ready,
)

DEFAULT_PORT = 8000
NO_RESTARTS: Mapping[int, GroupRestart] = {}


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
    stages = [row for target in targets for row in stage_rows(target, layout, observed, before, now)]
    current = {child.name: child.hash for children in rendered.replicas.values() for child in children}
    serving = [target for target in targets if serves(target, observed)]
    verdicts = {
        ConditionType.ACCEPTED: accepted(layout, problems),
        ConditionType.SCHEDULED: not_advertised(problems) or scheduled(layout, targets, observed, history, now),
        ConditionType.SHARING_READY: sharing_ready(layout, targets, observed),
        ConditionType.STAGES_READY: stages_ready(stages),
    }
    verdicts[ConditionType.READY] = ready(subject.generation, verdicts, targets, serving, observed, current)
    return OmniModelStatus(
        observed_generation=subject.generation,
        conditions=_conditions(verdicts, previous, subject.generation, now),
        pipeline=f"{layout.pipeline}/{layout.variant}",
        sharing=f"{layout.strategy}/{layout.backend}" if layout.slots else "None",
        stages=stages,
        stages_ready=f"{sum(row.state == 'Ready' for row in stages)}/{len(stages)}",
        gpus=[row for target in targets for row in slot_rows(target, layout, observed)],
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
