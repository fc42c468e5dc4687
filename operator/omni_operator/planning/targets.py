"""Layout → what one pipeline replica consists of: its claim, its stage pods in starting order, its front."""

from __future__ import annotations

from dataclasses import dataclass

from omni_operator.api import names
from omni_operator.planning.layout import Layout, SlotUse, Stage


@dataclass(frozen=True)
class PodTarget:
    """One stage pod that should exist."""

    name: str
    replica: int
    process: str
    stages: tuple[Stage, ...]
    slots: tuple[int, ...]
    """Slots of its stages, in the order in which the container sees the GPUs; empty for a pod on the CPU."""


@dataclass(frozen=True)
class ReplicaTarget:
    """One pipeline replica that should exist."""

    index: int
    claim: str | None
    """Name of its ResourceClaim; None where no stage uses a GPU."""
    pods: tuple[PodTarget, ...]
    """Stage pods in starting order: a pod's turn comes when every earlier one on its GPUs is ready."""
    front: str


def replica_target(model: str, layout: Layout, index: int) -> ReplicaTarget:
    """The replica number `index` of an OmniModel called `model`."""
    pods = [
        PodTarget(names.stage_pod_name(model, index, process), index, process, stages, _slots(stages))
        for process, stages in layout.processes().items()
    ]
    claim = names.claim_name(model, index) if layout.slots else None
    return ReplicaTarget(index, claim, starting_order(layout, pods), names.front_pod_name(model, index))


def starting_order(layout: Layout, pods: list[PodTarget]) -> tuple[PodTarget, ...]:
    """By `startOrder`, then biggest first: the stage that is hardest to fit finds the GPU emptiest. Ties keep the
    pipeline's order; pods on the CPU come last, which their turn does not depend on."""

    def key(pod: PodTarget) -> tuple[bool, int, object]:
        orders = [stage.start_order for stage in pod.stages if stage.start_order is not None]
        shares = [
            SlotUse(layout, slot).share_of(stage) or 0
            for stage in pod.stages
            for slot in stage.slots[:1]
            if stage.budget
        ]
        return (not pod.slots, min(orders, default=10**6), -sum(shares))

    return tuple(sorted(pods, key=key))


def _slots(stages: tuple[Stage, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(slot for stage in stages for slot in stage.slots))
