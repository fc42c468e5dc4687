"""Stage pods that do not come up though it is their turn: not within their time, or not on the node of their group.

No event tells that time has passed, so for each limit there is a moment at which to look again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from omni_operator.api.reasons import Reason
from omni_operator.planning.observed import Observed, ObservedClaim, ObservedPod
from omni_operator.planning.refusals import refusal_words
from omni_operator.planning.targets import PodTarget, ReplicaTarget

PLACEMENT_GRACE = timedelta(seconds=60)
"""A pod whose node lacks something for it gets so long from its turn: what others hold there may become free."""
FREEING_LIMIT = timedelta(seconds=30)
"""The claim controller takes an allocation back within a second or two after the last pod has gone."""
LACK = re.compile(r"\bInsufficient ([\w./-]*\w)")
"""The scheduler's words for a resource of which a node has too little left (its plugin NodeResourcesFit)."""


@dataclass(frozen=True)
class Misplaced:
    """A pod that cannot follow its group to the node where that is."""

    pod: ObservedPod
    node: str
    words: str
    due: datetime
    """When its group is released."""


def late(pod: PodTarget, seen: ObservedPod, now: datetime) -> bool:
    """Whether its `startupTimeout` has passed since its turn, and it has not been ready since.

    This is the limit for what no supervisor sees: an image that is never pulled, a volume that never comes, a pod
    that finds no node, a container that hangs. Once the container has ended by itself, its supervisor counts, from the
    start of each engine anew, and ends it with exit code 75: its last end tells more than that time has passed, and a
    stage that was ready once is not measured against its first start again.
    """
    due = _due(pod, seen)
    return due is not None and now >= due


def late_words(pod: PodTarget, seen: ObservedPod) -> str:
    """Which stage, which limit, and what it was last waiting for."""
    limit = int(_limit(pod).total_seconds())
    container = "its container, which runs and does not become ready" if seen.started else "its container"
    last = seen.unschedulable or refusal_words(seen) or seen.waiting or container
    return (
        f"{Reason.STAGE_START_TIMEOUT}: {pod.process} was not ready within {limit} s (startupTimeout) of its turn; "
        f"it waits for: {last}"
    )


def misplaced(target: ReplicaTarget, observed: Observed, now: datetime) -> Iterator[Misplaced]:
    """Pods that found no room on the node of their group. Where nothing of a group runs yet, a pod without a node just
    waits: for a GPU, or for a node that has all that it needs."""
    for pod in target.pods:
        seen = observed.pods.get(pod.name)
        if pod.group is None or seen is None or not _homeless(seen):
            continue
        node = _node_of_group(target, pod, observed)
        if node:
            yield Misplaced(seen, node, _lack_words(pod, seen, node), _since(seen, now) + PLACEMENT_GRACE)


def being_freed(target: ReplicaTarget, pod: PodTarget, observed: Observed, now: datetime) -> bool:
    """Whether the pod's claim still holds the GPUs that it held before its pods were removed. A pod that started now
    would be bound to them and to their node.

    It never waits for ever: an allocation that stays although no pod of ours uses it (someone else's pod may) is taken
    as it is after a while, told from when the pod was made. A time in the future means that clocks differ.
    """
    seen = observed.pods.get(pod.name)
    if seen is None or not _held_by_nobody(target, pod, observed):
        return False
    return seen.created is not None and now - FREEING_LIMIT < seen.created <= now


def look_again(targets: Iterable[ReplicaTarget], observed: Observed, now: datetime) -> timedelta | None:
    """When the next limit falls due; None: no pod is measured against one."""
    moments: list[datetime] = []
    for target in targets:
        moments += [found.due for found in misplaced(target, observed, now)]
        for pod in target.pods:
            seen = observed.pods.get(pod.name)
            if seen is None:
                continue
            due = _due(pod, seen)
            moments += [due] if due is not None else []
            if seen.created is not None and seen.gated and being_freed(target, pod, observed, now):
                moments.append(seen.created + FREEING_LIMIT)
    return min((moment - now for moment in moments if moment > now), default=None)


def _limit(pod: PodTarget) -> timedelta:
    return timedelta(seconds=max(stage.startup_timeout for stage in pod.stages))


def _due(pod: PodTarget, seen: ObservedPod) -> datetime | None:
    """When its time to start ends; None where the operator does not count."""
    if seen.ready or seen.been_ready or seen.deleting or seen.ended:
        return None
    if seen.turn_since is None or seen.restarts or seen.exit_code is not None:
        return None
    return seen.turn_since + _limit(pod)


def _homeless(pod: ObservedPod) -> bool:
    return bool(pod.unschedulable) and pod.node is None and not (pod.gated or pod.deleting or pod.ended)


def _since(pod: ObservedPod, now: datetime) -> datetime:
    """When its turn came; one in the future means that clocks differ, and counts from now."""
    return min(pod.turn_since or now, now)


def _node_of_group(target: ReplicaTarget, pod: PodTarget, observed: Observed) -> str:
    """Where the other pods of its group are, or else its claim's GPUs; empty where there is neither."""
    peers = (observed.pods.get(other.name) for other in target.pods if other.group == pod.group)
    nodes = (peer.node for peer in peers if peer is not None and peer.node and not peer.deleting)
    return next(nodes, "") or _node_of_claim(observed.claims.get(pod.group or ""))


def _node_of_claim(claim: ObservedClaim | None) -> str:
    devices = (claim.devices or {}) if claim is not None and claim.allocated else {}
    return next((device.node for device in devices.values()), "")


def _held_by_nobody(target: ReplicaTarget, pod: PodTarget, observed: Observed) -> bool:
    claim = observed.claims.get(pod.group or "")
    if claim is None or not claim.allocated:
        return False
    peers = (observed.pods.get(other.name) for other in target.pods if other.group == pod.group)
    return not any(peer is not None and peer.node for peer in peers)


def _lack_words(pod: PodTarget, seen: ObservedPod, node: str) -> str:
    lacks = list(dict.fromkeys(LACK.findall(seen.unschedulable)))
    if not lacks:
        return f"{pod.process} finds no room on node {node}, where its replica's GPUs are ({seen.unschedulable})"
    said = ", ".join(f"Insufficient {resource}" for resource in lacks)
    return f"{pod.process} needs {' and '.join(lacks)} that node {node} lacks ({said})"
