"""What to write next: the one step from what is observed towards what is rendered.

Invariants, each held by a test:
- a claim exists before any pod that names it, and goes only when none is left;
- a pod is never changed, only replaced, and its successor is made when it is gone, so that a GPU never holds more than
  its budget;
- a pod's gate opens only when every earlier pod on its GPUs is ready, and no outdated pod is left in its replica;
- one replica is taken down at a time;
- pods that go together go in such an order that the one that shows why is the last, so that half of it is seen as what
  it is;
- a replica whose pods are gone starts when its GPUs were given back, and not on what is left of its old place;
- nothing depends on memory: the step is computed from one snapshot, so a crash between any two writes loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from omni_operator.planning.faults import Groups
from omni_operator.planning.observed import FRONT, ChildKind, DaemonLimits, Observed, ObservedClaim, ObservedPod
from omni_operator.planning.starting import being_freed
from omni_operator.planning.targets import PodTarget, ReplicaTarget

NOTHING = Groups()
"""No replica restarts as a whole."""


RESTART_GRACE_SECONDS = 5
"""Of stage pods that restart together: nothing is left to drain, and the first container that the kubelet restarts in
place meanwhile may lose its SIGTERM, which comes before it can listen. The pods' own 45 s would hold up all others."""


@dataclass(frozen=True)
class Child:
    """A rendered object. `hash` identifies what was rendered."""

    kind: ChildKind
    name: str
    hash: str
    manifest: Mapping[str, Any] = field(compare=False)
    daemon_limits: DaemonLimits = field(default_factory=dict)
    """Of a claim: part of no hash, since the daemon of a claim that is there is good for any lower limit."""


@dataclass(frozen=True)
class Removal:
    """An object to delete, and only that very one."""

    kind: ChildKind
    name: str
    uid: str
    grace: int | None = None
    """Seconds from SIGTERM to SIGKILL, where they are not the pod's own."""


@dataclass(frozen=True)
class Step:
    """The writes of one pass, in this order: removals, those that must come after them, applications, gates."""

    remove: tuple[Removal, ...] = ()
    remove_last: tuple[Removal, ...] = ()
    apply: tuple[Child, ...] = ()
    open_gates: tuple[ObservedPod, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the world is as wanted, or has to move by itself first."""
        return not (self.removals or self.apply or self.open_gates)

    @property
    def removals(self) -> tuple[Removal, ...]:
        """All that go."""
        return self.remove + self.remove_last


@dataclass(frozen=True)
class Rendered:
    """All children of an OmniModel: those that every replica shares, and those of each replica."""

    shared: tuple[Child, ...]
    replicas: Mapping[int, tuple[Child, ...]]


def next_step(
    targets: tuple[ReplicaTarget, ...],
    rendered: Rendered,
    observed: Observed,
    now: datetime,
    groups: Groups = NOTHING,
) -> Step:
    """The writes that bring the cluster nearer to `rendered`. The stage pods of replicas that restart as a whole go,
    whatever they are like; those that are held get no gate opened."""
    steps = [_shared_step(rendered, observed), _surplus_replicas(targets, observed)]
    busy = _replica_in_replacement(targets, rendered, observed)
    for target in targets:
        if target.index in groups.restart:
            steps.append(_restart(target, observed, groups.restart[target.index]))
            continue
        may_remove = busy is None or busy == target.index
        step = _replica_step(target, rendered.replicas[target.index], observed, now, may_remove)
        steps.append(replace(step, open_gates=()) if target.index in groups.hold else step)
    return Step(
        tuple(removal for step in steps for removal in step.remove),
        tuple(removal for step in steps for removal in step.remove_last),
        tuple(child for step in steps for child in step.apply),
        tuple(pod for step in steps for pod in step.open_gates),
    )


def turn(target: ReplicaTarget, pod: PodTarget, observed: Observed) -> PodTarget | None:
    """The pod that `pod` waits for, None when it is its turn.

    A pod on the CPU waits for the first pod of its group that has a GPU: the first pod fixes the node, so it must be
    the one with the biggest needs.
    """
    earlier = target.pods[: target.pods.index(pod)]
    if not pod.slots:
        leaders = [other for other in target.pods if other.slots and other.group == pod.group]
        placed = any((seen := observed.pods.get(other.name)) is not None and seen.node for other in leaders)
        return None if placed or not leaders else leaders[0]
    for other in earlier:
        if set(other.slots) & set(pod.slots):
            seen = observed.pods.get(other.name)
            if seen is None or not seen.ready or seen.deleting:
                return other
    return None


def _restart(target: ReplicaTarget, observed: Observed, last: str) -> Step:
    pods = [
        Removal(ChildKind.POD, pod.name, pod.uid, RESTART_GRACE_SECONDS)
        for pod in observed.pods.values()
        if pod.replica == target.index and pod.component != FRONT and not pod.deleting
    ]
    first = tuple(removal for removal in pods if removal.name != last)
    return Step(first, tuple(removal for removal in pods if removal.name == last))


def _shared_step(rendered: Rendered, observed: Observed) -> Step:
    apply: list[Child] = []
    for child in rendered.shared:
        seen = observed.others.get((child.kind, child.name))
        if seen is None or (seen.hash != child.hash and not seen.deleting):
            apply.append(child)
    wanted = {(child.kind, child.name) for child in rendered.shared}
    surplus = [o for key, o in observed.others.items() if key not in wanted and not o.deleting]
    return Step(tuple(Removal(o.kind, o.name, o.uid) for o in surplus), apply=tuple(apply))


def _surplus_replicas(targets: tuple[ReplicaTarget, ...], observed: Observed) -> Step:
    kept = {target.index for target in targets}
    pods = [pod for pod in observed.pods.values() if pod.replica not in kept]
    claims = [
        claim
        for claim in observed.claims.values()
        if claim.replica not in kept and not any(pod.replica == claim.replica for pod in pods)
    ]
    removals = [Removal(ChildKind.POD, pod.name, pod.uid) for pod in pods if not pod.deleting]
    removals += [Removal(ChildKind.RESOURCE_CLAIM, c.name, c.uid) for c in claims if not c.deleting]
    return Step(tuple(removals))


def _outdated(target: ReplicaTarget, children: tuple[Child, ...], observed: Observed) -> bool:
    """Whether something of the replica must go because it is not what is rendered."""
    wanted = {child.name: child for child in children if child.kind is ChildKind.POD}
    for pod in observed.pods.values():
        if pod.replica == target.index and (pod.name not in wanted or pod.hash != wanted[pod.name].hash):
            return True
    return any(not claim.deleting for claim in _stale_claims(target, children, observed))


def serves(target: ReplicaTarget, observed: Observed) -> bool:
    """Whether every pod of the replica is ready and stays."""
    wanted = [*(pod.name for pod in target.pods), target.front]
    return all((pod := observed.pods.get(name)) is not None and pod.ready and not pod.deleting for name in wanted)


def _replica_in_replacement(targets: tuple[ReplicaTarget, ...], rendered: Rendered, observed: Observed) -> int | None:
    """The one replica that may be taken down now: one that does not serve, otherwise the last; None: nothing is
    outdated."""
    outdated = [t for t in targets if _outdated(t, rendered.replicas[t.index], observed)]
    if not outdated:
        return None
    down = [target for target in outdated if not serves(target, observed)]
    recovering = [t for t in targets if t not in outdated and not serves(t, observed)]
    if down:
        return down[-1].index
    return recovering[-1].index if recovering else outdated[-1].index


def _replica_step(
    target: ReplicaTarget, children: tuple[Child, ...], observed: Observed, now: datetime, may_remove: bool
) -> Step:
    claim_step, claim_stands = _claim_step(target, children, observed, may_remove)
    if not claim_stands:
        return claim_step
    wanted = {child.name: child for child in children if child.kind is ChildKind.POD}
    remove: list[Removal] = []
    outdated = False
    for pod in observed.pods.values():
        if pod.replica != target.index:
            continue
        current = pod.name in wanted and pod.hash == wanted[pod.name].hash
        outdated = outdated or not current or pod.deleting
        if not pod.deleting and ((not current and may_remove) or (pod.ended and not pod.stopped)):
            remove.append(Removal(ChildKind.POD, pod.name, pod.uid))
    create = [child for name, child in wanted.items() if name not in observed.pods]
    gates = () if outdated else tuple(_turns(target, observed, now))
    return Step((*claim_step.remove, *remove), apply=(*claim_step.apply, *create), open_gates=gates)


def _claim_step(
    target: ReplicaTarget, children: tuple[Child, ...], observed: Observed, may_remove: bool
) -> tuple[Step, bool]:
    """What to do about the claims, and whether pods may be made and kept on them."""
    stale = {claim.name: claim for claim in _stale_claims(target, children, observed)}
    if stale:
        if not may_remove:
            return Step(), False
        users = [pod for pod in observed.pods.values() if pod.replica == target.index and pod.claim in stale]
        used = {pod.claim for pod in users}
        gone = [claim for claim in stale.values() if claim.name not in used and not claim.deleting]
        removals = [Removal(ChildKind.POD, pod.name, pod.uid) for pod in users if not pod.deleting]
        return Step((*removals, *(Removal(ChildKind.RESOURCE_CLAIM, claim.name, claim.uid) for claim in gone))), False
    wanted = [child for child in children if child.kind is ChildKind.RESOURCE_CLAIM]
    return Step(apply=tuple(child for child in wanted if child.name not in observed.claims)), True


def _stale_claims(target: ReplicaTarget, children: tuple[Child, ...], observed: Observed) -> list[ObservedClaim]:
    """Claims of the replica that must go, or are going."""
    wanted = {child.name: child for child in children if child.kind is ChildKind.RESOURCE_CLAIM}
    claims = [claim for claim in observed.claims.values() if claim.replica == target.index]
    return [claim for claim in claims if claim.deleting or not _serves_claim(claim, wanted.get(claim.name))]


def _serves_claim(claim: ObservedClaim, wanted: Child | None) -> bool:
    """Whether a claim is good for what is rendered. A pod can only tighten the limit of its MPS daemon (NVIDIA MPS
    documentation), so a share above it needs a new daemon, which is a new claim; a lower one does not."""
    if wanted is None or claim.hash != wanted.hash:
        return False
    return all(
        (most := wanted.daemon_limits.get(request)) is not None and most <= limit
        for request, limit in claim.daemon_limits.items()
    )


def _turns(target: ReplicaTarget, observed: Observed, now: datetime) -> Iterator[ObservedPod]:
    for pod in target.pods:
        seen = observed.pods.get(pod.name)
        if seen is None or not seen.gated or turn(target, pod, observed) is not None:
            continue
        if not being_freed(target, pod, observed, now):
            yield seen
