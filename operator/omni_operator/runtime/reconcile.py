"""One pass over one OmniModel: observe → plan → render → apply → status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pydantic import ValidationError

from omni_operator.api.reasons import Reason
from omni_operator.api.v1alpha1 import OmniModelStatus
from omni_operator.kube.apply import carry_out, reimage, relabel, write_status
from omni_operator.kube.client import Client, KubeError, Manifest
from omni_operator.kube.contests import Contests
from omni_operator.kube.events import EventType, emit
from omni_operator.kube.observe import Snapshot, observe
from omni_operator.kube.offers import Offers
from omni_operator.kube.refusals import with_refusals
from omni_operator.kube.revisions import Current, Revisions
from omni_operator.kube.stage_pages import StagePages
from omni_operator.planning import measured, refusals, starting
from omni_operator.planning.cluster import Surroundings, in_use, settled
from omni_operator.planning.conditions import refused_status, restart_history, status, with_restarts, with_write_failure
from omni_operator.planning.drift import Repairs, repairs
from omni_operator.planning.faults import Groups, groups
from omni_operator.planning.layout import Problem
from omni_operator.planning.observed import Observed
from omni_operator.planning.rollout import Step, next_step
from omni_operator.planning.targets import existing_replicas
from omni_operator.planning.transitions import is_news, transitions
from omni_operator.rendering import Settings
from omni_operator.rendering.avoid import avoiding_nodes
from omni_operator.rendering.plan import Plan, plan_for, subject_of

log = logging.getLogger("omni_operator")

Clock = Callable[[], datetime]

OFFERS_AGAIN = timedelta(seconds=20)
"""While a pod has no node: neither nodes nor device classes are watched."""
REFUSED_AGAIN = timedelta(seconds=60)
"""A refusal that may be due to what the nodes offer now."""
HISTORY_RETRY = timedelta(seconds=15)
"""After a failure to keep history, which fails no pass."""


@dataclass(frozen=True)
class Memory:
    """What the operator remembers of the cluster. Nothing depends on it: it saves calls."""

    pages: StagePages = field(default_factory=StagePages)
    revisions: Revisions = field(default_factory=Revisions)
    offers: Offers = field(default_factory=Offers)
    contests: dict[tuple[str, str], Contests] = field(default_factory=dict)
    """By namespace and name of an OmniModel."""


@dataclass(frozen=True)
class Pass:
    """What one pass did."""

    step: Step
    repairs: Repairs = field(default_factory=Repairs)
    status_written: bool = False
    problems: tuple[Problem, ...] = ()
    status: OmniModelStatus | None = None
    look_again: timedelta | None = None
    """After this time, though no event may come."""

    @property
    def try_again(self) -> bool:
        """Whether something was refused that may be accepted later without an event of ours."""
        return bool(self.problems)


async def reconcile(
    client: Client,
    namespace: str,
    name: str,
    settings: Settings,
    clock: Clock,
    tell: bool = False,
    memory: Memory | None = None,
) -> Pass | None:
    """Bring the cluster one step nearer. None: the OmniModel is gone or going. Raises KubeError.

    With `tell`, a write that fails for another reason than the user's is said in the status before it is raised.
    Without `memory`, memory is not measured and no history kept.
    """
    snapshot = await observe(client, namespace, name)
    if snapshot is None or "deletionTimestamp" in snapshot.model["metadata"]:
        return None
    previous = _previous_status(snapshot.model)
    surroundings = await _surroundings(client, snapshot, memory.offers if memory is not None else Offers())
    plan = plan_for(snapshot.model, settings, surroundings)
    if not isinstance(plan, Plan):
        wanted = refused_status(subject_of(snapshot.model, None), plan, snapshot.observed, previous, clock())
        return await _finish(client, snapshot, previous, wanted, _refused(surroundings), clock)
    contests = memory.contests.setdefault((namespace, name), Contests()) if memory is not None else Contests()
    edited = contests.due(repairs(plan.rendered, snapshot.live), snapshot.live)
    repaired = await _put_back(client, snapshot, edited)
    if repaired is None:
        return None
    snapshot, now = repaired, clock()
    observed = await with_refusals(client, namespace, snapshot.observed, now)
    before = restart_history(previous)
    whole = groups(plan.targets, observed, plan.layout.mps, before, now)
    step = next_step(plan.targets, plan.rendered, observed, now, whole)
    step = avoiding_nodes(step, {index: restart.node for index, restart in whole.history.items() if restart.node})
    # Asked of the very snapshot that the step is made from: labels may be wrong again, or it was too early to repair.
    step = Step() if repairs(plan.rendered, snapshot.live).misleads else step

    def judged(seen: Observed) -> OmniModelStatus:
        return status(
            plan.subject, plan.layout, plan.problems, plan.targets, plan.rendered, seen, previous, now, whole.history
        )

    try:
        problems = tuple(await carry_out(client, snapshot, step, now, edited.apply, contests))
    except KubeError as error:
        if tell:
            problem = Problem(Reason.WRITE_FAILED, f"A write fails again and again, and is tried again: {error}")
            failed = with_write_failure(
                with_restarts(judged(observed), before), problem, previous, plan.subject.generation, clock()
            )
            await _finish(client, snapshot, previous, failed, Pass(step), clock)
        raise
    seen, place = await _beside(client, snapshot, observed, memory, now)
    wanted = with_restarts(judged(seen), whole.history)
    if isinstance(place, Current):
        wanted = wanted.model_copy(update={"revision": place.number, "revision_hash": place.hash})
    for problem in (*problems, *contests.problems())[:1]:
        wanted = with_write_failure(wanted, problem, previous, plan.subject.generation, clock())
    lost = isinstance(place, KubeError) and not place.user_can_fix
    again_in = _look_again(plan, observed, whole, now, HISTORY_RETRY if lost else None, contests.look_again())
    done = Pass(step, edited, problems=problems, look_again=again_in)
    return await _finish(client, snapshot, previous, wanted, done, clock)


def _refused(surroundings: Surroundings) -> Pass:
    """Nothing is done; what nodes offer may be why, and is looked at again."""
    by_nodes = surroundings.cluster is not None and bool(surroundings.cluster.nodes)
    return Pass(Step(), look_again=REFUSED_AGAIN if by_nodes else None)


async def _put_back(client: Client, snapshot: Snapshot, edited: Repairs) -> Snapshot | None:
    """Labels and images as they should be, and what is seen then: a step made on wrong labels would be wrong. None: the
    OmniModel is gone meanwhile."""
    await relabel(client, snapshot, edited.relabel)
    await reimage(client, snapshot, edited.reimage)
    if not edited.relabel:
        return snapshot
    meta = snapshot.model["metadata"]
    return await observe(client, meta["namespace"], meta["name"])


async def _beside(
    client: Client, snapshot: Snapshot, observed: Observed, memory: Memory | None, now: datetime
) -> tuple[Observed, Current | KubeError | None]:
    """What stages measure, and the place of the spec in history: after the writes, which must wait for neither."""
    if memory is None:
        return observed, None
    return await asyncio.gather(memory.pages.added(observed, now), memory.revisions.keep(client, snapshot.model, now))


def _look_again(
    plan: Plan, observed: Observed, whole: Groups, now: datetime, *others: timedelta | None
) -> timedelta | None:
    """The earliest moment at which something changes without an event."""
    moments = (
        refusals.look_again(observed.pods.values(), now),
        starting.look_again(plan.targets, observed, now),
        measured.look_again(observed.pods.values(), now),
        whole.look_again,
        None if not plan.layout.slots or settled(observed.pods.values()) else OFFERS_AGAIN,
        *others,
    )
    return min((moment for moment in moments if moment is not None), default=None)


async def _surroundings(client: Client, snapshot: Snapshot, offers: Offers) -> Surroundings:
    """The cluster is asked what it offers only while some pod has yet to find its node."""
    pods = snapshot.observed.pods.values()
    known = replace(in_use(pods), replicas=existing_replicas(snapshot.model["metadata"]["name"], pods))
    return known if settled(pods) else replace(known, cluster=await offers.cluster(client))


async def _finish(
    client: Client,
    snapshot: Snapshot,
    previous: OmniModelStatus,
    wanted: OmniModelStatus,
    done: Pass,
    clock: Clock,
) -> Pass:
    body = wanted.model_dump(by_alias=True, exclude_none=True, mode="json")
    written = await write_status(client, snapshot.model, body)
    for condition in transitions(previous, wanted):
        wrong = condition.status != "True" and is_news(condition)
        kind = EventType.WARNING if wrong else EventType.NORMAL
        try:
            await emit(client, snapshot.model, kind, condition.reason, condition.message, clock())
        except KubeError as error:
            log.warning("an event was lost: %s", error)
    return replace(done, status_written=written, status=wanted)


def _previous_status(model: Manifest) -> OmniModelStatus:
    """The status as it is; one that someone else wrote nonsense into counts as none."""
    try:
        return OmniModelStatus.model_validate(model.get("status") or {})
    except ValidationError:
        return OmniModelStatus()
