"""Layouts in neutral words, and how upstream and we each say yes or no to them.

Upstream is sglang-omni 0.1.9: its configuration classes, `compile_logical_processes`, `expand_replica_stages`,
`StagePlacementPlanner`, `build_process_topology_plan`, `validate_gpu_capacity`, in the order in which
`prepare_pipeline_runtime` and the launcher call them. Nothing of it needs a GPU or torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from omni_operator.api.quantities import Amount, Budget, Share
from omni_operator.catalogue import Card
from omni_operator.planning.layout import Layout, Stage


@dataclass(frozen=True)
class Placed:
    """One stage."""

    name: str
    process: str
    gpus: tuple[int, ...] = ()
    fraction: float | None = None
    reserve: int | None = None
    kv: int | None = None
    copies_on: tuple[int, ...] = ()
    """GPUs of the copies, where there are several; the stage has a process of its own then."""


@dataclass(frozen=True)
class Placements:
    """One pipeline on one machine."""

    stages: tuple[Placed, ...]
    limit: float = 1.0
    card: int | None = None
    """Bytes of every GPU, where the machine knows."""


def upstream_refusal(given: Placements) -> str | None:
    """Upstream's message, or None where it accepts."""
    import sglang_omni.utils.gpu_memory as gpu_memory
    from sglang_omni.config.placement import StagePlacementPlanner, validate_gpu_capacity
    from sglang_omni.config.topology import build_process_topology_plan, compile_logical_processes
    from sglang_omni.pipeline.replicas import expand_replica_stages

    original = gpu_memory.get_gpu_device_info
    gpu_memory.get_gpu_device_info = lambda gpu: gpu_memory.GpuDeviceInfo(gpu, None, "made up", given.card)
    try:
        config = upstream_config(given)
        logical, stages = compile_logical_processes(config)
        stages, copies = expand_replica_stages(stages, logical)
        planner = StagePlacementPlanner(config)
        plan = planner.build(stages_cfg=stages, apply_policy=False, replica_instances=copies.replicas)
        build_process_topology_plan(config, plan, stages_cfg=stages)
        validate_gpu_capacity(plan)
    except ValueError as error:  # pydantic's ValidationError is one too
        return str(error)
    finally:
        gpu_memory.get_gpu_device_info = original
    return None


def upstream_config(given: Placements) -> Any:
    """The PipelineConfig. Raises ValueError where its classes refuse it."""
    from sglang_omni.config.schema import (
        EngineArgs,
        EngineStageConfig,
        PipelineConfig,
        PlacementConfig,
        ProcessConfig,
        StageConfig,
    )

    stages = []
    for i, placed in enumerate(given.stages):
        last = i == len(given.stages) - 1
        fields: dict[str, Any] = {
            "name": placed.name,
            "process": placed.process,
            "factory_path": "made.up",
            "gpu": (placed.gpus[0] if len(placed.gpus) == 1 else list(placed.gpus)) if placed.gpus else None,
            "tp_size": max(1, len(placed.gpus)),
            "gpu_memory_fraction": placed.fraction,
            "total_reserve_bytes": placed.reserve,
            **({"terminal": True} if last else {"next": given.stages[i + 1].name}),
        }
        if placed.kv is not None:
            stages.append(EngineStageConfig(engine=EngineArgs(kv_cache_bytes=placed.kv), **fields))
        else:
            stages.append(StageConfig(**fields))
    return PipelineConfig(
        model_path="made/up",
        stages=stages,
        placement=PlacementConfig(max_total_gpu_memory_fraction_per_gpu=given.limit),
        processes={
            placed.process: ProcessConfig(num_replicas=len(placed.copies_on), replica_devices=list(placed.copies_on))
            for placed in given.stages
            if placed.copies_on
        },
    )


def our_layout(given: Placements) -> Layout:
    """The same as our layout. A float means the decimal that a user wrote."""
    return Layout(
        "made_up",
        "default",
        tuple(_stage(placed) for placed in given.stages),
        None if given.card is None else Card("made-up", given.card),
        limit=_decimal(given.limit),
    )


def _stage(placed: Placed) -> Stage:
    slots, copies, ranks = placed.gpus, 1, None
    if placed.copies_on:
        slots, copies, ranks = tuple(dict.fromkeys(placed.copies_on)), len(placed.copies_on), 1
    budget: Budget | None = None
    if placed.fraction is not None:
        budget = Share(_decimal(placed.fraction))
    elif placed.reserve is not None:
        budget = Amount(placed.reserve)
    return Stage(
        placed.name, placed.process, slots, budget, placed.kv is not None, placed.kv, copies=copies, ranks=ranks
    )


def _decimal(value: float) -> Fraction:
    return Fraction(repr(value))
