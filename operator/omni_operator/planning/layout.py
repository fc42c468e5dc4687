"""The values that planning works on: a resolved layout, and the problems that rules find in it. All are frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from omni_operator.api.quantities import Budget
from omni_operator.api.reasons import Reason
from omni_operator.api.v1alpha1 import Placement, SharingBackend, SharingStrategy
from omni_operator.catalogue import Card


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
    """How many times the stage runs on its slots within one replica."""
    compute_percentage: int | None = None
    start_order: int | None = None
    startup_timeout: int = 1800
    """Seconds from the stage's turn until it must be ready."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    path: str = "spec.stages"
    """Where a user changes it, for messages."""


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
    placement: Placement = Placement.SAME_NODE
    process_local_edges: tuple[tuple[str, str], ...] = ()
    apart: tuple[tuple[str, str], ...] = ()
    """Pairs of stages that may not share a GPU."""

    @property
    def slots(self) -> tuple[int, ...]:
        """All slots in use, rising."""
        return tuple(sorted({slot for stage in self.stages for slot in stage.slots}))

    def on_slot(self, slot: int) -> tuple[Stage, ...]:
        """Stages that use a slot, in pipeline order."""
        return tuple(stage for stage in self.stages if slot in stage.slots)

    def processes(self) -> Mapping[str, tuple[Stage, ...]]:
        """Stages by process, in pipeline order. A process is a pod."""
        grouped: dict[str, list[Stage]] = {}
        for stage in self.stages:
            grouped.setdefault(stage.process, []).append(stage)
        return {name: tuple(stages) for name, stages in grouped.items()}

    def shared_slots(self) -> tuple[int, ...]:
        """Slots that several processes use."""
        return tuple(slot for slot in self.slots if len({stage.process for stage in self.on_slot(slot)}) > 1)


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
    """Whether the verdict is no."""
    return any(problem.severity is not Severity.WARNING for problem in problems)


class SlotUse:
    """What the stages of one slot ask for together, exact: `Fraction` of bytes, so that rounding decides nothing."""

    def __init__(self, layout: Layout, slot: int) -> None:
        self.slot = slot
        self.stages = layout.on_slot(slot)
        self.card = layout.card

    def share_of(self, stage: Stage) -> Fraction | None:
        """The stage's share of the card, all copies; None where it has no budget, or an amount on an unknown card."""
        value = getattr(stage.budget, "value", None)
        if value is None:
            return None
        if isinstance(value, Fraction):
            return value * stage.copies
        return None if self.card is None else Fraction(value * stage.copies, self.card.memory)

    @property
    def shares(self) -> Mapping[str, Fraction]:
        """Known shares by stage, biggest first, ties in pipeline order."""
        known = [(stage.name, share) for stage in self.stages if (share := self.share_of(stage)) is not None]
        return dict(sorted(known, key=lambda row: -row[1]))

    @property
    def total(self) -> Fraction:
        """Sum of the known shares; above 1 it exceeds the whole card."""
        return sum(self.shares.values(), Fraction(0))

    @property
    def without_budget(self) -> tuple[Stage, ...]:
        """Stages of the slot that declare nothing."""
        return tuple(stage for stage in self.stages if stage.budget is None)
