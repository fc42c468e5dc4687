"""The values that planning works on: a resolved layout, and the problems that rules find in it. All are frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from omni_operator.api.enums import Placement, SharingBackend, SharingStrategy, TimeSliceInterval
from omni_operator.api.quantities import Amount, Budget, Share
from omni_operator.api.reasons import Reason
from omni_operator.catalogue import Card, ModelSize

if TYPE_CHECKING:
    from omni_operator.planning.templates import PodTemplate

T = TypeVar("T")

DEFAULT_STARTUP_TIMEOUT = 1800
"""Seconds. A 30 B model needs more than 300 s to load from a cold disk; half an hour is vLLM-Omni's own init limit."""


class kept(Generic[T]):
    """A property that is worked out once. As functools.cached_property, which takes a lock before Python 3.12 and is
    then the slowest part of a plan; two threads may both work it out, to the same value."""

    def __init__(self, work_out: Callable[[Any], T]) -> None:
        self._work_out = work_out
        self._name = work_out.__name__
        self.__doc__ = work_out.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = instance.__dict__[self._name] = self._work_out(instance)
        return value


@dataclass(frozen=True)
class Stage:
    """One stage, catalogue and overrides together."""

    name: str
    process: str
    slots: tuple[int, ...] = ()
    """Logical GPU slots, one per tensor-parallel rank; empty for a stage on the CPU."""
    budget: Budget | None = None
    """Memory on each of its slots."""
    engine: bool = False
    """Whether it is an engine with a KV cache, whose memory the runtime caps."""
    kv_cache: int | None = None
    """Bytes of the budget that the KV cache takes on each slot."""
    copies: int = 1
    """How many times the stage runs within one replica, each with the whole budget. On the same slots, unless there are
    `copies` times as many slots as ranks: then each copy has slots of its own."""
    ranks: int | None = None
    """Tensor-parallel size, where it was said; otherwise the number of slots."""
    compute_percentage: int | None = None
    start_order: int | None = None
    startup_timeout: int = DEFAULT_STARTUP_TIMEOUT
    """Seconds from the stage's turn until it must be ready."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    path: str = "spec.stages"
    """Where a user changes it, for messages."""
    gpu_processes: int = 1
    """How many processes of one copy open each of its GPUs: MPS limits each of them by itself."""
    keeps_share: bool = True
    """False where its engine is known to take what it likes, as the diffusion stages of vLLM-Omni do."""

    @property
    def copies_per_slot(self) -> int:
        """How many copies meet on each of its slots."""
        spread = self.ranks is not None and self.copies > 1 and len(self.slots) == self.ranks * self.copies
        return 1 if spread else self.copies


@dataclass(frozen=True)
class Neighbour:
    """Something else that takes memory of a slot's card: another tenant, or a process that declares no share."""

    name: str
    slot: int
    footprint: Budget | None = None
    """What it takes; None where nobody knows."""


@dataclass(frozen=True)
class DevicePlugin:
    """What the device plugin's nodes are like, as far as it is known."""

    replicas: int | None = None
    """Into how many the plugin divides each GPU (`sharing.mps.replicas` or `sharing.timeSlicing.replicas`)."""
    one_gpu_nodes: bool = False
    """Whether the pods' nodes have one GPU only, so that two pods of a node are sure to meet on it."""
    resource: str = "nvidia.com/gpu"
    """Extended resource by which a GPU, or a part of one, is asked for."""
    sharing: str = "none"
    """How the plugin shares each GPU: `none`, `mps` or `time-slicing`."""
    memory_known: bool = False
    """Whether its nodes are labelled with the memory of their GPUs."""

    @property
    def shared(self) -> bool:
        """Whether what is asked for is a part of a GPU."""
        return self.sharing != "none"


@dataclass(frozen=True)
class Layout:
    """A pipeline replica, resolved: everything that decides whether it fits and where it goes."""

    pipeline: str
    variant: str
    stages: tuple[Stage, ...]
    card: Card | None = None
    """The card that shares are planned on: no slot gets a smaller one."""
    limit: Fraction = Fraction(1)
    """How much of each card may be given away."""
    strategy: SharingStrategy = SharingStrategy.MPS
    backend: SharingBackend = SharingBackend.DRA
    multi_user: bool = False
    interval: TimeSliceInterval | None = None
    """For how long a process computes until the next has its turn, where that was said."""
    placement: Placement = Placement.SAME_NODE
    process_local_edges: tuple[tuple[str, str], ...] = ()
    apart: tuple[tuple[str, str], ...] = ()
    """Pairs of stages that may not share a GPU."""
    together: tuple[str, ...] = ()
    """Stages that must all be on one and the same GPU, none of them split."""
    neighbours: tuple[Neighbour, ...] = ()
    """What others hold of the cards."""
    device_plugin: DevicePlugin = DevicePlugin()
    size: ModelSize | None = None
    """How big the model is that is loaded, where that is known."""
    templates: tuple[PodTemplate, ...] = ()
    """What the user adds to pods, in the order in which it is merged."""

    @property
    def mps(self) -> bool:
        """Whether shared slots are under NVIDIA MPS."""
        return self.strategy is SharingStrategy.MPS

    @property
    def unshared(self) -> bool:
        """Whether a slot may have one process only."""
        return self.strategy is SharingStrategy.NONE

    @property
    def on_device_plugin(self) -> bool:
        """Whether GPUs are asked for through NVIDIA's device plugin instead of DRA."""
        return self.backend is SharingBackend.DEVICE_PLUGIN

    @kept
    def slots(self) -> tuple[int, ...]:
        """All slots in use, rising."""
        return tuple(sorted(self._on_slots))

    @kept
    def uses(self) -> Mapping[int, SlotUse]:
        """What is asked for of each slot, rising."""
        return {slot: SlotUse(self, slot) for slot in self.slots}

    @kept
    def _on_slots(self) -> Mapping[int, list[Stage]]:
        found: dict[int, list[Stage]] = {}
        for stage in self.stages:
            for slot in stage.slots:
                there = found.setdefault(slot, [])
                if not there or there[-1] is not stage:
                    there.append(stage)
        return found

    @kept
    def _by_process(self) -> Mapping[str, tuple[Stage, ...]]:
        grouped: dict[str, list[Stage]] = {}
        for stage in self.stages:
            grouped.setdefault(stage.process, []).append(stage)
        return {name: tuple(stages) for name, stages in grouped.items()}

    def on_slot(self, slot: int) -> tuple[Stage, ...]:
        """Stages that use a slot, in pipeline order."""
        return tuple(self._on_slots.get(slot, ()))

    def processes(self) -> Mapping[str, tuple[Stage, ...]]:
        """Stages by process, in pipeline order. A process is a pod."""
        return self._by_process

    def shared_slots(self) -> tuple[int, ...]:
        """Slots that several processes use."""
        return tuple([slot for slot, use in self.uses.items() if len(use.processes) > 1])

    def under_mps(self, slots: Iterable[int]) -> bool:
        """Whether a pod with these slots is a client of an MPS daemon: of a GPU to itself it is none."""
        return self.mps and not set(slots).isdisjoint(self.divided_slots())

    def divided_slots(self) -> tuple[int, ...]:
        """Slots whose GPU others may use too: the shared ones, or all where the device plugin gives parts of GPUs."""
        return self.slots if self.on_device_plugin and self.device_plugin.shared else self.shared_slots()


class Severity(StrEnum):
    """What a problem means for the verdict."""

    ERROR = "error"
    """Refused."""
    QUESTION = "question"
    """Not decidable: something that only the user knows is missing. Refused where an answer is needed to start."""
    WARNING = "warning"
    """Accepted, and said."""


@dataclass(frozen=True)
class Problem:
    """What a rule found. `needed` and `available` are bytes on one GPU, where the problem is one of memory."""

    reason: Reason
    message: str
    field: str = "spec"
    severity: Severity = Severity.ERROR
    slot: int | None = None
    stages: tuple[str, ...] = ()
    needed: int | None = None
    available: int | None = None
    remedy: str = ""
    """The smallest change that would help, in the user's words."""

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()


Problems = Iterator[Problem]


def refused(problems: tuple[Problem, ...]) -> bool:
    """Whether the verdict is no, or not yes: an open question stops a start too."""
    return any(problem.severity is not Severity.WARNING for problem in problems)


class SlotUse:
    """What the stages of one slot ask for together, exact: fractions of the card, so that rounding decides nothing."""

    def __init__(self, layout: Layout, slot: int) -> None:
        self.slot = slot
        self.stages = layout.on_slot(slot)
        self.neighbours = layout.neighbours and tuple(n for n in layout.neighbours if n.slot == slot)
        self.card = layout.card

    def share_of(self, stage: Stage) -> Fraction | None:
        """The stage's share of the card, all copies; None where it has no budget, or an amount on an unknown card."""
        share = self._share(stage.budget)
        return share if share is None or stage.copies == 1 else share * stage.copies_per_slot

    @kept
    def _known(self) -> Mapping[str, Fraction]:
        known: dict[str, Fraction] = {}
        for stage in self.stages:
            budget = stage.budget
            # The usual case without a call, since every verdict begins here.
            share = budget.value if type(budget) is Share and stage.copies == 1 else self.share_of(stage)
            if share is not None:
                known[stage.name] = share
        for neighbour in self.neighbours:
            if (share := self._share(neighbour.footprint)) is not None:
                known[neighbour.name] = known.get(neighbour.name, Fraction(0)) + share
        return known

    @kept
    def shares(self) -> Mapping[str, Fraction]:
        """Known shares by stage and neighbour, biggest first, ties in pipeline order."""
        return dict(sorted(self._known.items(), key=lambda row: row[1], reverse=True))

    @kept
    def _sum(self) -> tuple[int, int]:
        """Numerator and denominator of the sum: one sum of integers, as exact as one of fractions, and much faster."""
        ratios = [share.as_integer_ratio() for share in self._known.values()]
        common = lcm(*[denominator for _, denominator in ratios])
        return sum([numerator * (common // denominator) for numerator, denominator in ratios]), common

    @kept
    def total(self) -> Fraction:
        """Sum of the known shares; above 1 it exceeds the whole card."""
        return Fraction(*self._sum)

    def exceeds(self, limit: Fraction) -> bool:
        """Whether the sum is above a limit."""
        numerator, denominator = self._sum
        most, of = limit.as_integer_ratio()
        return numerator * of > most * denominator

    @property
    def without_budget(self) -> tuple[Stage, ...]:
        """Stages of the slot that declare nothing."""
        return tuple([stage for stage in self.stages if stage.budget is None])

    @kept
    def processes(self) -> tuple[str, ...]:
        """Processes of the slot, in pipeline order."""
        return tuple(dict.fromkeys([stage.process for stage in self.stages]))

    @kept
    def clients(self) -> int:
        """Processes that open the GPU, copies too. Stages of one process are one client."""
        if not [stage for stage in self.stages if stage.copies > 1 or stage.gpu_processes > 1]:
            return len(self.processes)
        return sum(
            max(stage.copies_per_slot * stage.gpu_processes for stage in self.stages if stage.process == process)
            for process in self.processes
        )

    def _share(self, budget: Budget | None) -> Fraction | None:
        if isinstance(budget, Share):
            return budget.value
        if isinstance(budget, Amount) and self.card is not None:
            return Fraction(budget.value, self.card.memory)
        return None
