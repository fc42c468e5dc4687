"""Layout → what one pipeline replica consists of: its claims, its stage pods in starting order, its front."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, islice

from omni_operator.api import names
from omni_operator.api.enums import Placement
from omni_operator.planning.layout import Layout, SlotUse, Stage
from omni_operator.planning.observed import ObservedPod


@dataclass(frozen=True)
class PodTarget:
    """One stage pod that should exist."""

    name: str
    replica: int
    process: str
    stages: tuple[Stage, ...]
    slots: tuple[int, ...]
    """Slots of its stages, in the order in which the container sees the GPUs; empty for a pod on the CPU."""
    group: str | None = None
    """The pods of a group are on one node, which the first of them with a GPU fixes. None: it may run anywhere."""


@dataclass(frozen=True)
class GroupTarget:
    """Slots that are asked for together, on one node: a ResourceClaim where GPUs are asked for through DRA."""

    name: str
    slots: tuple[int, ...]


@dataclass(frozen=True)
class ReplicaTarget:
    """One pipeline replica that should exist."""

    index: int
    groups: tuple[GroupTarget, ...]
    """One for all its slots, or one for each set of slots that some process joins; none where no stage uses a GPU."""
    pods: tuple[PodTarget, ...]
    """Stage pods in starting order: a pod's turn comes when every earlier one on its GPUs is ready."""
    front: str


def replica_target(model: str, layout: Layout, index: int) -> ReplicaTarget:
    """The replica number `index` of an OmniModel called `model`."""
    groups = _groups(model, layout, index)
    pods = [
        PodTarget(
            names.stage_pod_name(model, index, process), index, process, stages, slots, _group_of(slots, groups, layout)
        )
        for process, stages in layout.processes().items()
        for slots in [_slots(stages)]
    ]
    return ReplicaTarget(index, groups, starting_order(layout, pods), names.front_pod_name(model, index))


def existing_replicas(model: str, pods: Iterable[ObservedPod]) -> tuple[int, ...]:
    """The replicas that have pods, those first that are best kept: the ones that serve, then the lower numbers.

    A number is read off the pods' names, which nobody can change.
    """
    found: dict[int, list[ObservedPod]] = {}
    for pod in pods:
        number = re.match(rf"{re.escape(model)}-(\d+)-", pod.name)
        if number is not None:
            found.setdefault(int(number[1]), []).append(pod)

    def worth(index: int) -> tuple[bool, bool, int, int]:
        pods = found[index]
        serving = [pod for pod in pods if pod.ready and not pod.deleting]
        going = all(pod.deleting for pod in pods)
        return (going, len(serving) < len(pods), -len(serving), index)

    return tuple(sorted(found, key=worth))


def replica_indices(wanted: int, existing: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of the replicas that should exist: existing ones first, then the lowest that are free."""
    kept = existing[:wanted]
    free = (index for index in count() if index not in kept)
    return tuple(sorted((*kept, *islice(free, wanted - len(kept)))))


def joined_slots(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The slots, those together that some process sees together."""
    joined: list[set[int]] = [{slot} for slot in layout.slots]
    for stages in layout.processes().values():
        together = set(_slots(stages))
        met = [slots for slots in joined if slots & together]
        if met:
            joined = [slots for slots in joined if not slots & together]
            joined.append(set().union(*met))
    return tuple(sorted(tuple(sorted(slots)) for slots in joined))


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


def _groups(model: str, layout: Layout, index: int) -> tuple[GroupTarget, ...]:
    if not layout.slots:
        return ()
    if layout.placement is Placement.SAME_NODE:
        return (GroupTarget(names.group_name(model, index), layout.slots),)
    return tuple(GroupTarget(names.group_name(model, index, slots[0]), slots) for slots in joined_slots(layout))


def _group_of(slots: tuple[int, ...], groups: tuple[GroupTarget, ...], layout: Layout) -> str | None:
    """A pod on the CPU follows the others to their node, if there is only one."""
    for group in groups:
        if set(slots) & set(group.slots) or (not slots and layout.placement is Placement.SAME_NODE):
            return group.name
    return None
