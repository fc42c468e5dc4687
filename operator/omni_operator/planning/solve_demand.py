"""What the solver has to place: each stage's need of one card, in whole steps, by tensor-parallel size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil

from omni_operator.api.reasons import Reason
from omni_operator.catalogue.cards import Card
from omni_operator.catalogue.sizes import ModelSize
from omni_operator.planning.estimate_need import (
    RESERVING,
    PartKind,
    StageNeed,
    Workload,
    encoder_reserve,
    stage_need,
)
from omni_operator.planning.layout import Layout, Problem, Severity, Stage

STEPS = 1000
"""Parts of a card that shares are counted in: tenths of a percent."""
RANKS = (1, 2, 4, 8)
"""Tensor-parallel sizes that engines are tried with."""


@dataclass(frozen=True)
class Demand:
    """What the stages of one process need of each of their GPUs, all copies there."""

    steps: Mapping[int, int]
    """Steps by tensor-parallel size: those that are allowed."""
    stages: Mapping[str, Mapping[int, int]]
    """The same by stage."""
    reserve: Mapping[int, int] = field(default_factory=dict)
    """Steps more where one of `encoders` is on the same GPU, by tensor-parallel size."""
    reserving: str = ""
    encoders: frozenset[str] = field(default_factory=frozenset)

    def on(self, ranks: int, beside: frozenset[str]) -> int:
        """Steps on a GPU that these stages share."""
        return self.steps[ranks] + (self.reserve[ranks] if self.encoders & beside else 0)

    def by_stage(self, ranks: int, beside: frozenset[str] = frozenset()) -> dict[str, int]:
        """Steps of each stage on a GPU that these stages share."""
        given = {name: steps[ranks] for name, steps in self.stages.items()}
        if self.encoders & beside:
            given[self.reserving] += self.reserve[ranks]
        return given

    @classmethod
    def together(cls, demands: Sequence[Demand]) -> Demand:
        """Several stages in one process: they cannot be split, and their needs add up."""
        if len(demands) == 1:
            return demands[0]
        stages = {name: {1: steps[min(steps)]} for demand in demands for name, steps in demand.stages.items()}
        reserving = next((demand for demand in demands if demand.reserve), None)
        total = {1: sum(steps[1] for steps in stages.values())}
        if reserving is None:
            return cls(total, stages)
        return cls(total, stages, reserving.reserve, reserving.reserving, reserving.encoders)


def demands_of(layout: Layout, size: ModelSize | None, workload: Workload) -> Mapping[str, Demand] | Problem:
    """Demands of all stages on a GPU; the first stage of which nothing is known as a problem."""
    assert layout.card is not None
    found: dict[str, Demand] = {}
    for stage in layout.stages:
        if not stage.slots:
            continue
        demand = _demand(layout, layout.card, stage, size, workload)
        if demand is None:
            return Problem(
                Reason.BUDGET_UNKNOWN,
                f"What stage {stage.name} needs is not known: the catalogue has no size of it, and it declares none.",
                f"{stage.path}.gpuMemory",
                Severity.QUESTION,
                stages=(stage.name,),
                remedy="Set its gpuMemory, or give the model's folder so that its weights can be read.",
            )
        found[stage.name] = demand
    return found


def _demand(layout: Layout, card: Card, stage: Stage, size: ModelSize | None, workload: Workload) -> Demand | None:
    copies = stage.copies  # All of them go to the same slots: that takes fewest GPUs.
    known = {ranks: _need(layout, card, stage, size, workload, ranks) for ranks in _allowed(stage)}
    steps = {ranks: value * copies for ranks, value in known.items() if value is not None}
    if not steps:
        return None
    name, encoders = RESERVING.get(layout.pipeline, ("", ()))
    if stage.name != name or size is None or not size.of_stage(stage.name):
        return Demand(steps, {stage.name: steps})
    beside = replace(layout, stages=(stage, Stage(encoders[0], encoders[0], stage.slots)))
    whole = encoder_reserve(beside, stage)
    # What is left free for encoders is room for the graphs as well, which are counted already.
    more = {ranks: max(Fraction(0), whole - _graphs(layout, stage, size, workload, ranks)) for ranks in steps}
    reserve = {ranks: ceil(of_rank / card.memory * STEPS) * copies for ranks, of_rank in more.items()}
    return Demand(steps, {stage.name: steps}, reserve, stage.name, frozenset(encoders))


def _need(
    layout: Layout, card: Card, stage: Stage, size: ModelSize | None, workload: Workload, ranks: int
) -> int | None:
    """Steps of one copy without the encoder reserve; what it declares where its size is not known."""
    need = _shared_need(layout, stage, size, workload, ranks)
    if need is not None:
        return ceil(Fraction(need.capped * STEPS, card.memory))
    if stage.budget is None:
        return None
    return ceil(Fraction(stage.budget.bytes_of(card.memory) * STEPS, card.memory))


def _shared_need(
    layout: Layout, stage: Stage, size: ModelSize | None, workload: Workload, ranks: int
) -> StageNeed | None:
    """What a stage needs beside some other one; alone, where no MPS limits it, it needs a little less."""
    if size is None:
        return None
    slots = tuple(range(ranks))
    shared = replace(stage, slots=slots, ranks=ranks)
    other = Stage("another", "another", slots)
    return stage_need(replace(layout, stages=(shared, other)), shared, size, workload)


def _graphs(layout: Layout, stage: Stage, size: ModelSize, workload: Workload, ranks: int) -> int:
    need = _shared_need(layout, stage, size, workload, ranks)
    return need.of(PartKind.GRAPHS) if need is not None else 0


def _allowed(stage: Stage) -> tuple[int, ...]:
    """Tensor-parallel sizes: what was said, otherwise any for an engine; other stages are not split."""
    said = stage.ranks or (len(stage.slots) if len(stage.slots) > 1 else None)
    if said is not None:
        return (said,)
    return RANKS if stage.engine else (1,)
