"""What one stage needs on each of its GPUs, and where it goes. Exact: bytes are whole numbers, shares are fractions.

A stage's memory is its weights, split over its tensor-parallel ranks; its KV cache; the part of the card that stays
free for the encoders' working memory; its activations; and what CUDA itself takes of each process. What CUDA graphs and
workspaces take is not a stage's but a card's: `HELD_BACK`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Any

from omni_operator.api.quantities import MIB
from omni_operator.catalogue.cards import Card
from omni_operator.catalogue.shapes import ShapeError, dtype_name
from omni_operator.catalogue.sizes import Component, ModelSize
from omni_operator.planning.layout import Layout, Stage

HELD_BACK = Fraction(6, 100)
"""Of each card, for CUDA graphs, workspaces, activation peaks and fragmentation: sglang-omni's one-card layouts keep it
(examples/configs/qwen3_omni_colocated_h20.yaml)."""
ENCODER_RESERVE = Fraction(5, 100)
"""Of the card, off the thinker's share, for the working memory of encoders beside it: `encoder_mem_reserve` of
sglang-omni 0.1.9 (models/qwen3_omni/stages.py)."""
RESERVING: Mapping[str, tuple[str, tuple[str, ...]]] = {"qwen3_omni": ("thinker", ("image_encoder", "audio_encoder"))}
"""By pipeline, the stage that leaves the encoder reserve, and the encoders it leaves it for."""
CUDA_CONTEXT = 522 * MIB
"""Of each process on each GPU, before a model has loaded anything: 0.51 GiB, the same every run
(sgl-project/sglang-omni#1685)."""
ACTIVATIONS = Fraction(10, 100)
"""Of the weights, for stages that run no engine: the low end of 10 to 30 % (vLLM-Omni, GPU memory guide). An engine's
are in `HELD_BACK`."""


class PartKind(StrEnum):
    """Where a stage's memory goes."""

    WEIGHTS = "weights"
    KV_CACHE = "KV cache"
    ENCODER_RESERVE = "encoder reserve"
    ACTIVATIONS = "activations"
    RELAY = "relay buffers"
    GRAPHS = "CUDA graphs and workspaces"
    CUDA_CONTEXT = "CUDA context"


@dataclass(frozen=True)
class Part:
    """One use of memory, on one GPU. `size` is in bytes."""

    kind: PartKind
    size: int
    note: str = ""


@dataclass(frozen=True)
class Workload:
    """What the model is to serve. Left out, `context` is the model's own limit, and problems with it are warnings."""

    context: int | None = None
    """Tokens of the longest request, prompt and answer together."""
    requests: int = 1
    """How many of them at once."""
    kv_dtype: str | None = None
    """Of the KV cache; a stage's own engineArgs.kv_cache_dtype goes before it."""
    relay: int = 0
    """Bytes of GPU memory that each stage's relay takes: none over TCP, as between pods; 2 slots of 512 MiB over CUDA
    IPC (sglang-omni 0.1.9, relay/cuda_ipc.py)."""

    def __post_init__(self) -> None:
        if (self.context is not None and self.context < 1) or self.requests < 1 or self.relay < 0:
            raise ValueError("context and requests must be at least 1, and relay at least 0")

    def tokens(self, size: ModelSize) -> int | None:
        """Tokens that a cache must hold at once; None where nobody knows."""
        context = self.context or size.context
        return None if context is None else context * self.requests


@dataclass(frozen=True)
class StageNeed:
    """What a stage needs on each of its GPUs, one copy of it."""

    stage: str
    ranks: int
    parts: tuple[Part, ...]
    token: Fraction = Fraction(0)
    """Bytes that its cache takes of one token; 0 where it has no cache."""

    def of(self, *kinds: PartKind) -> int:
        """Bytes of parts of these kinds."""
        return sum(part.size for part in self.parts if part.kind in kinds)

    @property
    def weights(self) -> int:
        """Bytes of its weights."""
        return self.of(PartKind.WEIGHTS)

    @property
    def fixed(self) -> int:
        """Bytes of all but the KV cache, CUDA's own included: what is gone before the first token."""
        return self.capped - self.of(PartKind.KV_CACHE)

    @property
    def total(self) -> int:
        """Bytes in the card's account, where `HELD_BACK` covers what CUDA and its graphs take."""
        return self.capped - self.of(PartKind.CUDA_CONTEXT, PartKind.GRAPHS)

    @property
    def capped(self) -> int:
        """Bytes that a cap on the process must leave it: MPS counts CUDA's own memory too."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class KvRoom:
    """What a budget leaves for a stage's KV cache on each of its GPUs."""

    stage: str
    size: int
    """Bytes; below 0 the rest does not even fit."""
    token: Fraction

    @property
    def tokens(self) -> int:
        """Whole tokens that fit."""
        return max(0, int(self.size / self.token)) if self.token else 0

    def context(self, requests: int = 1) -> int:
        """Tokens of the longest request, so many of them at once."""
        return self.tokens // requests

    def requests(self, context: int) -> int:
        """Requests of so many tokens that fit at once."""
        return self.tokens // context


def stage_need(layout: Layout, stage: Stage, size: ModelSize, workload: Workload) -> StageNeed | None:
    """What one copy of `stage` needs on each GPU; None on the CPU, or where its size is not known.

    The encoder reserve needs the layout's card: without one it is left out.
    """
    components = size.of_stage(stage.name)
    if not stage.slots or not components:
        return None
    ranks = stage.ranks or len(stage.slots)
    weights = ceil(sum((component.rank_weights(ranks) for component in components), Fraction(0)))
    token = _token(stage, components, workload, ranks)
    parts = [Part(PartKind.WEIGHTS, weights, ", ".join(f"{c.name} in {c.dtype}" for c in components))]
    if token:
        parts.append(_cache(stage, size, workload, token))
    if reserve := encoder_reserve(layout, stage):
        parts.append(Part(PartKind.ENCODER_RESERVE, ceil(reserve), "working memory of the encoders beside it"))
    if not stage.engine:
        parts.append(Part(PartKind.ACTIVATIONS, ceil(weights * ACTIVATIONS)))
    if workload.relay:
        parts.append(Part(PartKind.RELAY, workload.relay))
    if graphs := _graphs(layout, stage, weights):
        parts.append(Part(PartKind.GRAPHS, graphs, "within the limit that MPS sets for the process"))
    parts.append(Part(PartKind.CUDA_CONTEXT, CUDA_CONTEXT, "each process takes it on each GPU"))
    return StageNeed(stage.name, ranks, tuple(parts), token)


def stage_needs(layout: Layout, size: ModelSize, workload: Workload) -> Mapping[str, StageNeed]:
    """Needs by stage, of those whose size is known."""
    found = ((stage.name, stage_need(layout, stage, size, workload)) for stage in layout.stages)
    return {name: need for name, need in found if need is not None}


def kv_room(layout: Layout, stage: Stage, size: ModelSize, workload: Workload | None = None) -> KvRoom | None:
    """What the stage's budget leaves for its KV cache; None without a cache, a budget or a card.

    As sglang-omni sizes it: the share of the whole card, less the encoder reserve and what the process holds already.
    A stage that declares `kvCache` has that, if it fits.
    """
    need = stage_need(layout, stage, size, workload or Workload())
    if need is None or not need.token or stage.budget is None or layout.card is None:
        return None
    rest = stage.budget.bytes_of(layout.card.memory) - need.fixed
    return KvRoom(stage.name, rest if stage.kv_cache is None else min(rest, stage.kv_cache), need.token)


def smallest_budget(need: StageNeed, card: Card) -> Fraction:
    """The smallest share of the card, in tenths of a percent, that gives the stage what it needs; above 1 none does."""
    return Fraction(ceil(Fraction(need.capped, card.memory) * 1000), 1000)


def engine_headroom(layout: Layout, stage: Stage) -> int:
    """Bytes of a stage's budget on each GPU that its engine must leave free of weights and KV cache.

    An engine fills its share to the brim, and then captures CUDA graphs beside it: out of what a card has left, or not
    at all where MPS limits the process to the share, CUDA's own memory included. So there it gets a smaller share. 0
    where nothing limits the process, and where the KV cache is given in bytes.
    """
    if not stage.engine or stage.budget is None or layout.card is None or stage.kv_cache is not None:
        return 0
    if not layout.under_mps(stage.slots):
        return 0
    components = layout.size.of_stage(stage.name) if layout.size else ()
    ranks = stage.ranks or len(stage.slots)
    weights = ceil(sum((component.rank_weights(ranks) for component in components), Fraction(0)))
    budget = stage.budget.bytes_of(layout.card.memory)
    return CUDA_CONTEXT + _graphs(layout, stage, weights or budget)


def _graphs(layout: Layout, stage: Stage, weights: int) -> int:
    """What `HELD_BACK` is of a card, of the weights, for an engine under MPS; less what it leaves to encoders anyway,
    which have processes and limits of their own."""
    if not stage.engine or stage.kv_cache is not None or not layout.under_mps(stage.slots):
        return 0
    return max(0, ceil(HELD_BACK * weights) - ceil(encoder_reserve(layout, stage)))


def encoder_reserve(layout: Layout, stage: Stage) -> Fraction:
    """Bytes that the stage leaves free for encoders on a GPU of its own; 0 where there are none, or no card."""
    name, encoders = RESERVING.get(layout.pipeline, ("", ()))
    beside = any(set(other.slots) & set(stage.slots) for other in layout.stages if other.name in encoders)
    if stage.name != name or not beside or layout.card is None:
        return Fraction(0)
    return _share(stage.engine_args.get("encoder_mem_reserve"), ENCODER_RESERVE) * layout.card.memory


def _cache(stage: Stage, size: ModelSize, workload: Workload, token: Fraction) -> Part:
    if stage.kv_cache is not None:
        return Part(PartKind.KV_CACHE, stage.kv_cache, "as declared")
    tokens = workload.tokens(size)
    if tokens is None:
        return Part(PartKind.KV_CACHE, 0, "how long requests are is not known")
    return Part(PartKind.KV_CACHE, ceil(tokens * token), f"{tokens} tokens of {int(token)} bytes")


def _token(stage: Stage, components: tuple[Component, ...], workload: Workload, ranks: int) -> Fraction:
    if not stage.engine:
        return Fraction(0)
    said = stage.engine_args.get("kv_cache_dtype") or workload.kv_dtype
    caches = [(component, component.kv) for component in components if component.kv is not None]
    return sum((kv.token_bytes(_dtype(said, component), ranks) for component, kv in caches), Fraction(0))


def _dtype(said: Any, component: Component) -> str:
    if said is None or said == "auto":
        return component.kv_dtype
    try:
        return dtype_name(str(said))
    except ShapeError:
        return component.kv_dtype  # The engine says what is wrong with it; the estimate takes the model's own.


def _share(value: Any, default: Fraction) -> Fraction:
    """A share of the card out of engineArgs, where a number may be a float: its decimal text is what was meant."""
    try:
        share = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        return default
    return share if 0 <= share < 1 else default
