"""Layouts that people tried on real cards: what worked, and what did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from omni_operator.api.quantities import Budget, parse_amount, parse_budget
from omni_operator.catalogue.files import data_yaml
from omni_operator.catalogue.pipelines import known_models


@dataclass(frozen=True)
class TriedStage:
    """Where a stage ran, and with how much of each card; no budget where the source gives none."""

    name: str
    slots: tuple[int, ...]
    budget: Budget | None


@dataclass(frozen=True)
class TriedLayout:
    """One layout with its outcome."""

    name: str
    engine: str
    model: str
    pipeline: str
    """Empty where only vLLM-Omni serves the model."""
    variant: str
    card: str
    stages: tuple[TriedStage, ...]
    works: bool
    copies: int
    """How many times the stages ran on their slots."""
    tokens: int | None
    """The cap on the tokens of each engine's KV cache, where there was one."""
    used: int | None
    """Bytes of the busiest card that the source measured."""
    note: str
    source: str

    @property
    def gpus(self) -> int:
        """How many cards it takes."""
        return len({slot for stage in self.stages for slot in stage.slots})


@cache
def tried_layouts() -> Mapping[str, TriedLayout]:
    """All layouts by name, in the order of the file."""
    return {name: _layout(name, row) for name, row in data_yaml("layouts.yaml").items()}


def layouts_for(model: str, card: str | None = None) -> tuple[TriedLayout, ...]:
    """Layouts of a model, by hub id in any case, that worked; on one card where it is given."""
    return tuple(
        layout
        for layout in tried_layouts().values()
        if layout.works and layout.model.lower() == model.lower() and card in (None, layout.card)
    )


def _layout(name: str, row: Mapping[str, Any]) -> TriedLayout:
    known = known_models().get(row["model"].lower())
    return TriedLayout(
        name=name,
        engine=row.get("engine", "sglang-omni"),
        model=row["model"],
        pipeline=row.get("pipeline") or (known.pipeline if known else ""),
        variant=row["variant"],
        card=row["card"],
        stages=tuple(
            TriedStage(stage, tuple(slots), None if share is None else parse_budget(share))
            for stage, (slots, share) in row["stages"].items()
        ),
        works=row.get("works", True),
        copies=row.get("copies", 1),
        tokens=row.get("tokens"),
        used=None if "used" not in row else parse_amount(row["used"]),
        note=row.get("note", ""),
        source=row["source"],
    )
