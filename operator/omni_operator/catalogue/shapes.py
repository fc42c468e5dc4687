"""How many parameters a decoder has, and what its cache takes of each token, from the shape that its config.json gives.

All counts are exact integers. The formulas are those of the Qwen, Llama and Mistral families (transformers' modelling
files): grouped-query attention, gated MLP or experts, RMS norms. What a model adds beside its decoder is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

DTYPE_BITS: Mapping[str, int] = {
    "fp64": 64, "fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "int4": 4,
    "int64": 64, "int32": 32, "int16": 16, "bool": 8,
}  # fmt: skip
"""Bits of one value."""

_TORCH_NAMES = {
    "float64": "fp64", "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "auto": "bf16",
}  # fmt: skip


class ShapeError(ValueError):
    """A configuration does not say what is needed, or says what cannot be; the message names the key."""


@dataclass(frozen=True)
class KvShape:
    """What a decoder caches of each token it has read."""

    layers: int
    kv_heads: int
    head_size: int

    def token_bytes(self, dtype: str = "bf16", ranks: int = 1) -> Fraction:
        """Bytes of one token on each of `ranks` tensor-parallel ranks: layers × KV heads × head size × 2 × bytes.

        KV heads are split over the ranks; where there are fewer heads than ranks each rank keeps a whole one
        (as SGLang's and vLLM's `get_num_kv_heads` do).
        """
        heads = max(1, -(-self.kv_heads // ranks))
        return Fraction(self.layers * heads * self.head_size * 2 * DTYPE_BITS[dtype], 8)


@dataclass(frozen=True)
class DecoderShape:
    """The shape of a decoder. `experts` is 0 for a dense one."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool
    experts: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0

    @property
    def kv(self) -> KvShape:
        """What it caches of each token."""
        return KvShape(self.layers, self.kv_heads, self.head_size)

    @property
    def parameters(self) -> int:
        """Parameters of embeddings, layers, norms and output layer; biases are left out (below 0.1 %)."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        if self.experts:
            mlp = self.experts * (3 * self.hidden * self.expert_intermediate + self.hidden)
            mlp += 3 * self.hidden * self.shared_intermediate
        else:
            mlp = 3 * self.hidden * self.intermediate
        norms = 2 * self.hidden + 2 * self.head_size
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + mlp + norms) + embeddings + self.hidden


def kv_shape(config: Mapping[str, Any]) -> KvShape:
    """The cache's shape from a (text) configuration. Raises ShapeError."""
    heads = _positive(config, "num_attention_heads", "n_heads", "n_head")
    kv_heads = _positive(config, "num_key_value_heads", "n_kv_heads", "n_local_heads", default=heads)
    head_size = _optional(config, "head_dim")
    if head_size is None:
        head_size = _positive(config, "hidden_size", "dim") // heads
    if head_size < 1:
        raise ShapeError("hidden_size is smaller than num_attention_heads")
    return KvShape(_positive(config, "num_hidden_layers", "n_layers", "n_layer"), kv_heads, head_size)


def decoder_shape(config: Mapping[str, Any]) -> DecoderShape:
    """The whole shape from a (text) configuration. Raises ShapeError."""
    kv = kv_shape(config)
    experts = _optional(config, "num_experts", "n_routed_experts", "num_local_experts") or 0
    return DecoderShape(
        layers=kv.layers,
        hidden=_positive(config, "hidden_size", "dim"),
        heads=_positive(config, "num_attention_heads", "n_heads", "n_head"),
        kv_heads=kv.kv_heads,
        head_size=kv.head_size,
        intermediate=_positive(config, "intermediate_size", "hidden_dim", default=1 if experts else None),
        vocabulary=_positive(config, "vocab_size"),
        tied=config.get("tie_word_embeddings", config.get("tied_embeddings", False)) is True,
        experts=experts,
        expert_intermediate=_positive(config, "moe_intermediate_size") if experts else 0,
        shared_intermediate=_optional(config, "shared_expert_intermediate_size") or 0,
    )


def dtype_name(name: str) -> str:
    """Our name of a dtype, from torch's or ours. Raises ShapeError."""
    short = name.removeprefix("torch.").lower()
    short = _TORCH_NAMES.get(short, short)
    if short not in DTYPE_BITS:
        raise ShapeError(f"dtype {name[:40]!r} is not known; known are {', '.join(DTYPE_BITS)}")
    return short


def _optional(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of `keys` that is there and not null: a whole number from 1 to 10 million."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 10**7:
            raise ShapeError(f"{key} must be a whole number from 1 to 10 million")
        return value
    return None


def _positive(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    value = _optional(config, *keys)
    if value is None:
        value = default
    if value is None:
        raise ShapeError(f"{keys[0]} is missing")
    return value
