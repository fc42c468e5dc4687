"""What a file says, in one shape for every form: stages with devices and budgets, before the catalogue is asked.

`None` always means "the file does not say". Device numbers are the file's own, logical, and become slots later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from omni_operator.api.quantities import Budget
from omni_operator.importing.notes import Note


class Form(StrEnum):
    """The forms that are read."""

    SGLANG_CLASS = "sglang-omni: pipeline class only"
    SGLANG_STAGES_LIST = "sglang-omni: stages list"
    SGLANG_STAGE_OVERRIDES = "sglang-omni: stage_overrides"
    SGLANG_RUNTIME_OVERRIDES = "sglang-omni: runtime_overrides"
    SGLANG_STAGES_MAP = "sglang-omni: stages map"
    VLLM_STAGE_ARGS = "vllm-omni: stage_args"
    VLLM_PIPELINE = "vllm-omni: pipeline.yaml"
    VLLM_DEPLOY = "vllm-omni: deploy"
    VLLM_STAGE_OVERRIDES = "vllm-omni: --stage-overrides"

    @property
    def engine(self) -> str:
        """Whose form it is."""
        return self.value.partition(":")[0]


@dataclass(frozen=True)
class FoundStage:
    """One stage as a file gives it."""

    name: str
    path: str
    """Where in the file."""
    devices: tuple[int, ...] | None = None
    """Devices of one copy; empty on the CPU."""
    ranks: int | None = None
    """Tensor-parallel ranks, where said apart from the devices."""
    budget: Budget | None = None
    kv_cache: int | None = None
    process: str | None = None
    copies: tuple[tuple[int, ...], ...] = ()
    """Devices of each copy, where there are several or where they are moved; otherwise empty."""
    static_fraction: str | None = None
    """`mem_fraction_static` as written: a part of what is free at start, which is no share of the card."""
    token_cap: bool = False
    """Whether the KV cache is capped in tokens or bytes."""
    diffusion: bool = False
    """A diffusion stage, whose share the engine does not enforce."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """One file, read."""

    form: Form
    stages: tuple[FoundStage, ...] = ()
    notes: tuple[Note, ...] = ()
    name: str | None = None
    model: str | None = None
    config_class: str | None = None
    """Upstream's pipeline class (sglang-omni)."""
    pipeline: str | None = None
    """Upstream's pipeline name (vllm-omni)."""
    max_share: str | None = None
    """The limit per GPU, as a percentage."""
    mps: str | None = None
    weight_share: bool = False
    replicas: Mapping[str, tuple[int, tuple[int, ...] | None]] = field(default_factory=dict)
    """By process: how many copies, and the devices of all of them."""
