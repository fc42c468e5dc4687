"""When all stage pods of a replica go together, and start again in order.

Either something took the whole GPU: a fatal CUDA error or a lost MPS server reaches every client of the GPU, and an MPS
server takes no new client until all old ones have gone (NVIDIA MPS documentation); a device that is unhealthy or
tainted has to be given back. Restarting one container in place would fail for ever; restarting all of them at once
would break the starting order. Or a stage finds no room on the node where the others are: then the replica's GPUs are
released, and it is placed anew.

How often is remembered in the status alone, and the delay doubles each time, so that a broken GPU is not hammered.
After a fault the pods stay for the delay; after a release they are gone, and the first gate stays closed for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from omni_operator.planning.observed import FRONT, Observed, ObservedPod
from omni_operator.planning.starting import misplaced
from omni_operator.planning.targets import PodTarget, ReplicaTarget
from omni_stage.contract import ExitCode

KILLED = 137
"""Ended by SIGKILL. Under MPS the client could not detach, which may leave the server in a faulted state."""
DEVICE_TAINTED = "DeletionByDeviceTaintManager"
"""Reason of a pod's condition DisruptionTarget where Kubernetes evicts it for a NoExecute taint of its device."""
FIRST_DELAY = timedelta(seconds=10)
LONGEST_DELAY = timedelta(minutes=10)
FORGOTTEN_AFTER = timedelta(hours=1)
"""A group that ran this long since its last restart starts counting anew."""


@dataclass(frozen=True)
class GroupRestart:
    """That the stage pods of a replica were restarted together."""

    replica: int
    count: int
    last: datetime
    reason: str
    node: str = ""
    """The node that lacked something for one of them, where that was why."""


@dataclass(frozen=True)
class Cause:
    """Why a replica's stage pods go together."""

    pod: str
    """The pod that shows it. It goes last, so that a restart that was cut short is seen as one again."""
    reason: str
    node: str = ""
    since: datetime | None = None
    """Not before this moment; None: at once."""


@dataclass(frozen=True)
class Groups:
    """What one pass does about replicas as a whole."""

    history: Mapping[int, GroupRestart] = field(default_factory=dict)
    """By replica, those of this pass among them."""
    restart: Mapping[int, str] = field(default_factory=dict)
    """Replicas whose stage pods go now, each with the pod that goes last."""
    hold: frozenset[int] = frozenset()
    """Replicas that were released, and are not placed anew yet."""
    look_again: timedelta | None = None
    """When a delay ends."""


def group_fault(target: ReplicaTarget, observed: Observed, mps: bool) -> Cause | None:
    """Why the whole replica must restart; None where nothing of the kind happened."""
    stays = any(
        pod.replica == target.index and pod.component != FRONT and pod.node and not pod.deleting
        for pod in observed.pods.values()
    )
    for pod in target.pods:
        seen = observed.pods.get(pod.name)
        if not pod.slots or seen is None:
            continue
        words = _tainted(pod, seen) if seen.deleting and stays else _fault(pod, seen, mps)
        if words:
            return Cause(seen.name, words)
    return None


def groups(
    targets: tuple[ReplicaTarget, ...],
    observed: Observed,
    mps: bool,
    history: Mapping[int, GroupRestart],
    now: datetime,
) -> Groups:
    """Which replicas restart as a whole in this pass, and which still wait for it."""
    known = {t.index: _up_to_now(history[t.index], now) for t in targets if t.index in history}
    restart: dict[int, str] = {}
    waits: list[timedelta] = []
    for target in targets:
        cause = _cause(target, observed, mps, now)
        if cause is None:
            continue
        before = known.get(target.index)
        wait = _wait(cause, before, now)
        if wait > timedelta(0):
            waits.append(wait)
            continue
        count = before.count + 1 if before is not None and now - before.last < FORGOTTEN_AFTER else 1
        known[target.index] = GroupRestart(target.index, count, now, cause.reason, cause.node)
        restart[target.index] = cause.pod
    ends = {index: held_until(entry) - now for index, entry in known.items() if entry.node}
    held = frozenset(index for index, left in ends.items() if left > timedelta(0))
    return Groups(known, restart, held, min([*waits, *(ends[index] for index in held)], default=None))


def delay(count: int) -> timedelta:
    """How long after restart number `count` the next one may come."""
    return min(LONGEST_DELAY, FIRST_DELAY * (1 << max(0, min(count - 1, 10))))


def held_until(release: GroupRestart) -> datetime:
    """When a replica that was released is placed anew."""
    return release.last + delay(release.count)


def _cause(target: ReplicaTarget, observed: Observed, mps: bool, now: datetime) -> Cause | None:
    fault = group_fault(target, observed, mps)
    if fault is not None:
        return fault
    stuck = min(misplaced(target, observed, now), key=lambda found: found.due, default=None)
    return Cause(stuck.pod.name, stuck.words, stuck.node, stuck.due) if stuck is not None else None


def _wait(cause: Cause, before: GroupRestart | None, now: datetime) -> timedelta:
    """How long it is still too early. A group that was restarted lately waits for its delay."""
    moments = [cause.since or now]
    if before is not None:
        moments.append(before.last + delay(before.count))
    return max(moments) - now


def _up_to_now(restart: GroupRestart, now: datetime) -> GroupRestart:
    """A restart in the future, of a clock that is ahead or of someone else's making, was now: or it would keep the next
    one off until then."""
    return replace(restart, last=min(restart.last, now))


def _fault(pod: PodTarget, seen: ObservedPod, mps: bool) -> str:
    """What took the pod's GPU, in words."""
    if seen.deleting:
        return ""
    if seen.unhealthy:
        return f"a GPU of {pod.process} is unhealthy: {seen.unhealthy}"
    if seen.disruption == DEVICE_TAINTED:
        return _tainted(pod, seen)
    fatal = seen.exit_code == ExitCode.CUDA_FAULT
    if seen.ready or not (fatal or (mps and seen.exit_code == KILLED)):
        return ""
    what = "a fatal CUDA error or a lost MPS server" if fatal else "killed under MPS"
    said = f": {seen.exit_message}" if seen.exit_message else ""
    return f"{pod.process} ended with exit code {seen.exit_code}, {what}{said}"


def _tainted(pod: PodTarget, seen: ObservedPod) -> str:
    if seen.disruption != DEVICE_TAINTED:
        return ""
    device = f" ({seen.unhealthy})" if seen.unhealthy else ""
    return f"a GPU of {pod.process}{device} was tainted, and Kubernetes evicts its pods ({DEVICE_TAINTED})"
