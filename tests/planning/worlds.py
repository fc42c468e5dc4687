"""A cluster in memory for planning's tests: it does what one step says, and what kubelet and scheduler would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from typing import Any

from omni_operator.api import names
from omni_operator.api.v1alpha1 import OmniModelStatus
from omni_operator.planning.cluster import Surroundings
from omni_operator.planning.conditions import status
from omni_operator.planning.faults import GroupRestart, groups
from omni_operator.planning.observed import ChildKind, Device, Observed, ObservedClaim, ObservedOther, ObservedPod
from omni_operator.planning.rollout import Child, Step, next_step
from omni_operator.planning.targets import existing_replicas
from omni_operator.rendering import Settings
from omni_operator.rendering.plan import Plan, plan_for
from omni_stage.contract import PodConfig

SETTINGS = Settings("stage:1")
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def plan_of(manifest: dict[str, Any], world: World | None = None) -> Plan:
    """With a world, in sight of the replicas that are there."""
    pods = world.pods.values() if world is not None else ()
    plan = plan_for(manifest, SETTINGS, Surroundings(replicas=existing_replicas(manifest["metadata"]["name"], pods)))
    assert isinstance(plan, Plan), [str(problem) for problem in plan]
    return plan


@dataclass
class World:
    """Mutable on purpose: it stands for the API server."""

    pods: dict[str, ObservedPod] = field(default_factory=dict)
    claims: dict[str, ObservedClaim] = field(default_factory=dict)
    others: dict[tuple[ChildKind, str], ObservedOther] = field(default_factory=dict)
    requests: dict[str, list[str]] = field(default_factory=dict)
    """Of each claim."""
    shares: dict[str, dict[int, Fraction]] = field(default_factory=dict)
    """What each pod, by uid, was told that it may take of each slot's card."""
    log: list[str] = field(default_factory=list)
    made: int = 0
    now: datetime = NOW
    history: dict[int, GroupRestart] = field(default_factory=dict)
    """Restarts of whole replicas, which the status remembers."""

    def observed(self) -> Observed:
        return Observed(dict(self.pods), dict(self.claims), dict(self.others))

    def pass_(self, plan: Plan) -> Step:
        """What the operator would write now."""
        whole = groups(plan.targets, self.observed(), plan.layout.mps, self.history, self.now)
        self.history = dict(whole.history)
        return next_step(plan.targets, plan.rendered, self.observed(), self.now, whole)

    def step(self, plan: Plan, writes: int | None = None) -> Step:
        """One pass. With `writes` the operator is killed after so many, and the status is not written."""
        history = self.history
        step = self.pass_(plan)
        done: list[Callable[[], None]] = [partial(self._remove, r.kind, r.name) for r in step.removals]
        done += [partial(self._apply, child) for child in step.apply]
        done += [partial(self._open, pod.name) for pod in step.open_gates]
        for write in done[:writes]:
            write()
        if writes is not None:
            self.history = history
        return step

    def _open(self, name: str) -> None:
        self.log.append(f"open {name}")
        self.edit(name, gated=False, turn_since=self.now)

    def _remove(self, kind: ChildKind, name: str) -> None:
        self.log.append(f"delete {kind} {name}")
        if kind is ChildKind.POD:
            self.pods[name] = replace(self.pods[name], deleting=True)
        elif kind is ChildKind.RESOURCE_CLAIM:
            assert not any(pod.claim == name for pod in self.pods.values())
            del self.claims[name]
        else:
            del self.others[kind, name]

    def _apply(self, child: Child) -> None:
        self.made += 1
        self.log.append(f"apply {child.kind} {child.name}")
        meta, uid = child.manifest["metadata"], f"uid-{self.made}"
        replica = int(meta["labels"].get(names.REPLICA_LABEL, 0))
        if child.kind is ChildKind.POD:
            for reference in child.manifest["spec"].get("resourceClaims", []):
                assert reference["resourceClaimName"] in self.claims, "a pod needs its claim"
            assert child.name not in self.pods
            self.shares[uid] = _shares(child)
            self.pods[child.name] = ObservedPod(
                child.name,
                uid,
                replica,
                meta["labels"][names.COMPONENT_LABEL],
                meta["labels"].get(names.PROCESS_LABEL, ""),
                child.hash,
                int(meta["annotations"][names.GENERATION_ANNOTATION]),
                claim=next((r["resourceClaimName"] for r in child.manifest["spec"].get("resourceClaims", [])), None),
                gated=bool(child.manifest["spec"].get("schedulingGates")),
                created=self.now,
                turn_since=None if child.manifest["spec"].get("schedulingGates") else self.now,
            )
        elif child.kind is ChildKind.RESOURCE_CLAIM:
            self.claims[child.name] = ObservedClaim(
                child.name, uid, replica, child.hash, daemon_limits=child.daemon_limits
            )
            self.requests[child.name] = [each["name"] for each in child.manifest["spec"]["devices"]["requests"]]
        else:
            self.others[child.kind, child.name] = ObservedOther(child.kind, child.name, uid, child.hash)

    def schedule(self) -> None:
        """The scheduler: every pod without a gate gets a node, all of a claim the same one, and the claim its GPUs."""
        for pod in self.pods.values():
            if not pod.gated and pod.node is None and not pod.unschedulable:
                self.pods[pod.name] = replace(pod, node=f"node-of-{pod.claim}")
        for claim in self.claims.values():
            if any(pod.node for pod in self.pods.values() if pod.claim == claim.name) and not claim.allocated:
                devices = {request: self._device(claim.name, request) for request in self.requests[claim.name]}
                self.claims[claim.name] = replace(claim, allocated=True, devices=devices)

    def _device(self, claim: str, request: str) -> Device:
        uuid = f"GPU-{request.removeprefix('slot')}-of-{claim}"
        return Device(request, f"node-of-{claim}", "gpu-0", uuid, "NVIDIA H100 80GB HBM3", 81559 * 2**20)

    def become_ready(self, *pods: str) -> None:
        for name in pods or [name for name, pod in self.pods.items() if pod.node and not pod.deleting]:
            assert self.pods[name].node is not None
            self.pods[name] = replace(self.pods[name], ready=True)

    def finish_deletions(self, names: list[str] | None = None) -> None:
        """Pods that are being removed are gone: all, whose claims are freed at once, or those of some names."""
        gone = [name for name, pod in self.pods.items() if pod.deleting] if names is None else names
        for name in gone:
            del self.pods[name]
        if names is None:
            self.free_claims()

    def free_claims(self) -> None:
        """The claim controller: no pod that has a node uses the claim any more."""
        for claim in self.claims.values():
            if not any(pod.node for pod in self.pods.values() if pod.claim == claim.name):
                self.claims[claim.name] = replace(claim, allocated=False, devices=None)

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def edit(self, pod: str, **changes: Any) -> None:
        """What kubelet, the scheduler or a person does to a pod."""
        self.pods[pod] = replace(self.pods[pod], **changes)

    def settle(self, plan: Plan, most: int = 60) -> None:
        """Until nothing is left to do."""
        for _ in range(most):
            before = (dict(self.pods), dict(self.claims))
            step = self.step(plan)
            self.finish_deletions()
            self.schedule()
            self.become_ready()
            if step.empty and before == (self.pods, self.claims):
                return
        raise AssertionError("it does not come to rest")


def _shares(child: Child) -> dict[int, Fraction]:
    text = child.manifest["metadata"]["annotations"][names.POD_CONFIG_ANNOTATION]
    config = PodConfig.from_json(text)
    found: dict[int, Fraction] = {}
    for stage in config.stages:
        for slot in stage.slots if stage.process == config.process else ():
            assert stage.memory_share is not None, "a pod is told its own budget"
            found[slot] = found.get(slot, Fraction(0)) + Fraction(stage.memory_share)
    return found


def look(
    world: World, plan: Plan, previous: OmniModelStatus | None = None, now: datetime | None = None
) -> OmniModelStatus:
    """The status that the operator would write of this world."""
    return status(
        plan.subject,
        plan.layout,
        plan.problems,
        plan.targets,
        plan.rendered,
        world.observed(),
        previous or OmniModelStatus(),
        now or world.now,
        world.history,
    )
