"""An OmniModel as the cluster has it now, in values for showing: status, spec, its pods, and what they measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from omni_operator.api.reasons import ConditionType
from omni_operator.cli.judge import Judgement
from omni_operator.planning.layout import Layout

Manifest = Mapping[str, Any]

READY = "Ready"


@dataclass(frozen=True)
class Page:
    """What a pod's supervisor says of itself."""

    state: str
    detail: str
    memory: int | None
    """Bytes that the engine holds, of all its GPUs together where `on_gpu`, otherwise of the host."""
    on_gpu: bool
    mps_attached: bool


@dataclass(frozen=True)
class LiveStage:
    """A stage of one replica, or its front."""

    name: str
    replica: int
    pod: str
    state: str
    reason: str = ""
    slots: tuple[int, ...] = ()
    gpu_memory: str = ""
    gpu_memory_bytes: int | None = None
    """On each GPU."""
    kept_by: str = ""
    """Who keeps it within its share: MPS, engine, or nothing."""
    reported: Page | None = None
    """What the operator last measured, by the status."""
    restarts: int = 0
    started: datetime | None = None
    """When the container that runs now was started."""
    page: Page | None = None

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.state == READY

    @property
    def why(self) -> str:
        """What it waits for, or why it failed; where the status does not say, what its supervisor does."""
        return self.reason or (self.page.detail if self.page and not self.ready else "")

    @property
    def measured(self) -> int | None:
        """Bytes that its process holds on each of its GPUs; None where that is not known."""
        found = self._memory_page
        if found is None or found.memory is None or not found.on_gpu:
            return None
        return found.memory // max(1, len(self.slots)) if found is self.page else found.memory

    @property
    def host_memory(self) -> int | None:
        """Bytes of the host that its process holds; None where that is not known, or it is measured on its GPUs."""
        found = self._memory_page
        return None if found is None or found.on_gpu else found.memory

    @property
    def _memory_page(self) -> Page | None:
        """Its own word where it was asked, otherwise the operator's."""
        return self.page if self.page is not None and self.page.memory is not None else self.reported


@dataclass(frozen=True)
class LiveRestart:
    """That all stage pods of a replica were restarted together."""

    replica: int
    count: int
    last: datetime | None
    reason: str


@dataclass(frozen=True)
class LiveCard:
    """A GPU behind a slot of one replica."""

    slot: int
    replica: int
    given_away: str
    stages: tuple[str, ...]
    uuid: str = ""
    product: str = ""
    node: str = ""
    capacity: str = ""


@dataclass(frozen=True)
class LiveCondition:
    """One condition."""

    type: str
    status: str
    reason: str
    message: str
    since: datetime | None

    @property
    def good(self) -> bool:
        """All conditions are positive."""
        return self.status == "True"


@dataclass(frozen=True)
class LiveModel:
    """Everything that is shown of one OmniModel."""

    name: str
    namespace: str
    generation: int
    observed_generation: int | None
    """None where no operator has looked at it yet."""
    created: datetime | None
    deleting: bool
    pipeline: str
    sharing: str
    endpoint: str
    stages_ready: str
    gpu_summary: str
    conditions: tuple[LiveCondition, ...] = ()
    stages: tuple[LiveStage, ...] = ()
    fronts: tuple[LiveStage, ...] = ()
    cards: tuple[LiveCard, ...] = ()
    judgement: Judgement | None = None
    """What the rules say of the spec as it is stored."""
    running: Judgement | None = None
    """And of the last accepted one, which runs, where the one that is stored is refused."""
    notes: tuple[str, ...] = ()
    restarts: tuple[LiveRestart, ...] = ()
    revision: int | None = None
    """Number of the last accepted spec."""

    @property
    def current(self) -> bool:
        """Whether the status is about the spec as it is now."""
        return (self.observed_generation or 0) >= self.generation

    @property
    def ready(self) -> bool:
        """Whether the endpoint serves this generation."""
        ready = self.condition(ConditionType.READY)
        return self.current and ready is not None and ready.good

    @property
    def drawn(self) -> Judgement | None:
        """Of what runs, as far as that is known."""
        return self.running or self.judgement

    @property
    def layout(self) -> Layout | None:
        """The layout that runs, as far as that is known."""
        return self.drawn.layout if self.drawn is not None else None

    @property
    def replicas(self) -> tuple[int, ...]:
        """Indexes of all replicas, rising."""
        rows: list[LiveStage | LiveCard] = [*self.stages, *self.cards, *self.fronts]
        return tuple(sorted({row.replica for row in rows}))

    def condition(self, kind: ConditionType) -> LiveCondition | None:
        """One condition, None where it is not there."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


@dataclass(frozen=True)
class Readings:
    """What was read besides the OmniModel itself."""

    pods: Sequence[Manifest] = ()
    pages: Mapping[str, Page] = field(default_factory=dict)
    """By pod."""
    notes: tuple[str, ...] = ()
    accepted: Manifest | None = None
    """The last accepted spec, where the one that is stored is refused."""
