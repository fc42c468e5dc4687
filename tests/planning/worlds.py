"""A cluster in memory for planning's tests: it does what one step says, and what kubelet and scheduler would."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from omni_operator.api import names
from omni_operator.planning.observed import ChildKind, Device, Observed, ObservedClaim, ObservedOther, ObservedPod
from omni_operator.planning.rollout import Child, Step, next_step
from omni_operator.rendering import Settings
from omni_operator.rendering.plan import Plan, plan_for

SETTINGS = Settings("stage:1")


def plan_of(manifest: dict[str, Any]) -> Plan:
    plan = plan_for(manifest, SETTINGS)
    assert isinstance(plan, Plan), [str(problem) for problem in plan]
    return plan


@dataclass
class World:
    """Mutable on purpose: it stands for the API server."""

    pods: dict[str, ObservedPod] = field(default_factory=dict)
    claims: dict[str, ObservedClaim] = field(default_factory=dict)
    others: dict[tuple[ChildKind, str], ObservedOther] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    made: int = 0

    def observed(self) -> Observed:
        return Observed(dict(self.pods), dict(self.claims), dict(self.others))

    def step(self, plan: Plan) -> Step:
        step = next_step(plan.targets, plan.rendered, self.observed())
        for removal in step.remove:
            self._remove(removal.kind, removal.name)
        for child in step.apply:
            self._apply(child)
        for pod in step.open_gates:
            self.log.append(f"open {pod.name}")
            self.pods[pod.name] = replace(self.pods[pod.name], gated=False)
        return step

    def _remove(self, kind: ChildKind, name: str) -> None:
        self.log.append(f"delete {kind} {name}")
        if kind is ChildKind.POD:
            self.pods[name] = replace(self.pods[name], deleting=True)
        elif kind is ChildKind.RESOURCE_CLAIM:
            assert not any(
                p.replica == self.claims[name].replica and p.component == "stage" for p in self.pods.values()
            )
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
            self.pods[child.name] = ObservedPod(
                child.name,
                uid,
                replica,
                meta["labels"][names.COMPONENT_LABEL],
                meta["labels"].get(names.PROCESS_LABEL, ""),
                child.hash,
                int(meta["annotations"][names.GENERATION_ANNOTATION]),
                gated=bool(child.manifest["spec"].get("schedulingGates")),
            )
        elif child.kind is ChildKind.RESOURCE_CLAIM:
            self.claims[child.name] = ObservedClaim(child.name, uid, replica, child.hash)
        else:
            self.others[child.kind, child.name] = ObservedOther(child.kind, child.name, uid, child.hash)

    def schedule(self) -> None:
        """The scheduler: every pod without a gate gets a node, and its claim its GPUs."""
        for pod in self.pods.values():
            if not pod.gated and pod.node is None:
                self.pods[pod.name] = replace(pod, node="node-a")
        for claim in self.claims.values():
            users = [p for p in self.pods.values() if p.replica == claim.replica and p.component == "stage"]
            if any(p.node for p in users) and not claim.allocated:
                device = Device("slot0", "node-a", "gpu-0", "GPU-1", "NVIDIA H100 80GB HBM3", 81559 * 2**20)
                self.claims[claim.name] = replace(claim, allocated=True, devices={"slot0": device})

    def become_ready(self, *pods: str) -> None:
        for name in pods or [name for name, pod in self.pods.items() if pod.node and not pod.deleting]:
            assert self.pods[name].node is not None
            self.pods[name] = replace(self.pods[name], ready=True)

    def finish_deletions(self) -> None:
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleting}

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
