"""The pipelines of sglang-omni and our own, as data: their stages, edges, processes, default slots and shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from omni_operator.api.quantities import Amount, Budget, parse_budget
from omni_operator.catalogue.files import data_json, data_yaml


@dataclass(frozen=True)
class StageDefault:
    """A stage as its pipeline declares it."""

    name: str
    process: str
    """The container it shares upstream; the operator gives it one of its own unless an edge must stay local."""
    slots: tuple[int, ...]
    """Logical GPU slots, empty for a stage on the CPU."""
    budget: Budget | None
    engine: bool
    """Whether it is an SGLang engine with a KV cache, whose memory can be capped."""
    next: tuple[str, ...]
    stream_to: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    """What its factory takes from a user; an engine stage takes SGLang's server arguments besides."""


@dataclass(frozen=True)
class Variant:
    """One shape of a pipeline."""

    name: str
    config_class: str
    stages: tuple[StageDefault, ...]
    process_local_edges: tuple[tuple[str, str], ...] = ()
    """Pairs of stages that must run in one process."""
    apart: tuple[tuple[str, str], ...] = ()
    """Pairs of stages that this variant refuses on one GPU."""
    one_gpu: bool = False
    """Whether upstream's placement policy refuses it on more than one GPU, and tensor parallelism with it."""

    @property
    def together(self) -> tuple[str, ...]:
        """Stages that upstream wants on one and the same GPU."""
        return tuple(stage.name for stage in self.stages if stage.slots) if self.one_gpu else ()


@dataclass(frozen=True)
class Pipeline:
    """A model family's pipeline."""

    name: str
    architectures: tuple[str, ...]
    default_variant: str
    variants: Mapping[str, Variant]
    source: str


@cache
def pipelines() -> Mapping[str, Pipeline]:
    """All pipelines by name."""
    result: dict[str, Pipeline] = {}
    for file in ("pipelines.json", "own_pipelines.json"):
        document = data_json(file)
        for name, row in document["pipelines"].items():
            variants = {v: _variant(v, data) for v, data in row["variants"].items()}
            result[name] = Pipeline(
                name, tuple(row["architectures"]), row["defaultVariant"], variants, document["source"]
            )
    return result


@dataclass(frozen=True)
class KnownModel:
    """A hub id whose pipeline is known."""

    id: str
    pipeline: str
    variant: str | None


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Hub ids, in lower case, whose pipeline is known."""
    rows = data_yaml("models.yaml")
    return {id.lower(): KnownModel(id, row["pipeline"], row.get("variant")) for id, row in rows.items()}


def _variant(name: str, row: Mapping[str, Any]) -> Variant:
    return Variant(
        name,
        row["configClass"],
        tuple(_stage(stage) for stage in row["stages"]),
        tuple((a, b) for a, b in row.get("processLocalEdges", ())),
        tuple((a, b) for a, b in row.get("apart", ())),
        row.get("oneGpu", False),
    )


def _stage(row: Mapping[str, Any]) -> StageDefault:
    budget: Budget | None = None
    if "share" in row:
        budget = parse_budget(row["share"])
    elif "reserveBytes" in row:
        budget = Amount(row["reserveBytes"])
    return StageDefault(
        row["name"],
        row["process"],
        tuple(row["slots"]),
        budget,
        row["engine"],
        tuple(row.get("next", ())),
        tuple(row.get("streamTo", ())),
        tuple(row.get("arguments", ())),
    )
