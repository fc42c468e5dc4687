"""How big known models are: parameters of each component, what their caches take, and which stage loads what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from omni_operator.catalogue.files import data_yaml
from omni_operator.catalogue.shapes import DTYPE_BITS, KvShape


@dataclass(frozen=True)
class Component:
    """A part of a model that is loaded as a whole."""

    name: str
    weights: int
    """Bytes of its weights, as they lie on the GPU."""
    dtype: str = "bf16"
    """Of most of its weights; the one a cache takes unless said otherwise, FP8 weights having a BF16 cache."""
    kv: KvShape | None = None
    """None where it keeps no cache."""
    spread: bool = True
    """Whether tensor parallelism splits it; otherwise every rank holds the whole."""

    def rank_weights(self, ranks: int) -> Fraction:
        """Bytes on each of `ranks` GPUs."""
        return Fraction(self.weights, ranks if self.spread else 1)

    @property
    def kv_dtype(self) -> str:
        """The dtype of the cache where nothing is said: that of the activations."""
        return self.dtype if DTYPE_BITS[self.dtype] >= 16 else "bf16"


@dataclass(frozen=True)
class ModelSize:
    """One model."""

    id: str
    components: Mapping[str, Component]
    stages: Mapping[str, tuple[str, ...]]
    """Components by stage of the model's pipeline. A stage that is not named loads nothing that is known."""
    context: int | None
    """The most tokens of one request, as upstream serves it; None where that is not known."""
    source: str

    def of_stage(self, stage: str) -> tuple[Component, ...]:
        """The components that a stage loads."""
        return tuple(self.components[name] for name in self.stages.get(stage, ()))

    @property
    def weights(self) -> int:
        """Bytes of all components once."""
        return sum(component.weights for component in self.components.values())


@cache
def model_sizes() -> Mapping[str, ModelSize]:
    """Known models by hub id in lower case."""
    return {id.lower(): _size(id, row) for id, row in data_yaml("sizes.yaml").items()}


def weight_bytes(parameters: int, dtype: str) -> int:
    """Bytes of so many parameters, a part of a byte counted as one."""
    return -(-parameters * DTYPE_BITS[dtype] // 8)


def _size(id: str, row: Mapping[str, Any]) -> ModelSize:
    components = {name: _component(name, found) for name, found in row["components"].items()}
    stages = {name: tuple(found) for name, found in row["stages"].items()}
    return ModelSize(id, components, stages, row.get("context"), row["source"])


def _component(name: str, row: Mapping[str, Any]) -> Component:
    kv = KvShape(*row["kv"]) if "kv" in row else None
    dtype = row["dtype"]
    return Component(name, weight_bytes(row["parameters"], dtype), dtype, kv, row.get("spread", True))
