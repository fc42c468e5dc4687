"""Faults that take a whole GPU: all pods of the replica's claim go, and start again in order.

A fatal CUDA error or a lost MPS server reaches every client of the GPU, and an MPS server takes no new client until all
old ones have gone (NVIDIA MPS documentation). Restarting one container in place would fail for ever; restarting all of
them at once would break the starting order. So the group is taken down whole. How often is remembered in the status
alone, and the delay between two restarts doubles, so that a broken GPU is not hammered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from omni_operator.planning.observed import Observed, ObservedPod
from omni_operator.planning.targets import ReplicaTarget
from omni_stage.contract import ExitCode

KILLED = 137
"""Ended by SIGKILL. Under MPS the client could not detach, which may leave the server in a faulted state."""
FIRST_DELAY = timedelta(seconds=10)
LONGEST_DELAY = timedelta(minutes=10)
FORGOTTEN_AFTER = timedelta(hours=1)
"""A group that ran this long since its last restart starts counting anew."""


@dataclass(frozen=True)
class GroupRestart:
    """That the pods of a replica's claim were restarted together."""

    replica: int
    count: int
    last: datetime
    reason: str


def group_fault(target: ReplicaTarget, observed: Observed, mps: bool) -> str | None:
    """Why the whole replica must restart, in words; None where nothing of the kind happened."""
    for pod in target.pods:
        seen = observed.pods.get(pod.name)
        if pod.slots and seen is not None and _faulted(seen, mps):
            what = (
                "a fatal CUDA error or a lost MPS server"
                if seen.exit_code == ExitCode.CUDA_FAULT
                else "killed under MPS"
            )
            said = f": {seen.exit_message}" if seen.exit_message else ""
            return f"{pod.process} ended with exit code {seen.exit_code}, {what}{said}"
    return None


def restarts(
    targets: tuple[ReplicaTarget, ...],
    observed: Observed,
    mps: bool,
    history: Mapping[int, GroupRestart],
    now: datetime,
) -> Mapping[int, GroupRestart]:
    """The history with those replicas added whose group restarts in this pass: their entry's `last` is `now`."""
    result = {t.index: history[t.index] for t in targets if t.index in history}
    for target in targets:
        reason = group_fault(target, observed, mps)
        if reason is None:
            continue
        before = history.get(target.index)
        if before is None or now - before.last >= FORGOTTEN_AFTER:
            result[target.index] = GroupRestart(target.index, 1, now, reason)
        elif now - before.last >= delay(before.count):
            result[target.index] = GroupRestart(target.index, before.count + 1, now, reason)
    return result


def delay(count: int) -> timedelta:
    """How long after restart number `count` the next one may come."""
    return min(LONGEST_DELAY, FIRST_DELAY * (1 << min(count - 1, 10)))


def _faulted(pod: ObservedPod, mps: bool) -> bool:
    ended = pod.exit_code == ExitCode.CUDA_FAULT or (mps and pod.exit_code == KILLED)
    return ended and not pod.ready and not pod.deleting
