"""From a pod's file to sglang-omni's own pipeline configuration.

Every pod of a replica derives the same one from the same stages, so that all agree on edges, placement and addresses.
Anything that sglang-omni refuses becomes a ConfigError, for a restart would only repeat it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from decimal import ROUND_DOWN, Decimal
from typing import Any

from pydantic import ValidationError
from sglang_omni.config import EngineArgs, PipelineConfig
from sglang_omni.utils.imports import import_string

from omni_stage import tiny
from omni_stage.contract import ConfigError, Device, PodConfig, StageConfig
from omni_stage.engine import cpu

DEFAULT_VARIANT = "default"
SMALLEST_SHARE = Decimal("0.000001")


def pipeline_class(pipeline: str, variant: str) -> type[PipelineConfig]:
    """The configuration class of a pipeline's variant; raises ConfigError that names what there is."""
    module_name = "omni_stage.tiny.config" if pipeline == tiny.PIPELINE else f"sglang_omni.models.{pipeline}.config"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise ConfigError(f"pipeline: sglang-omni has no {pipeline!r}") from error
        raise ConfigError(f"pipeline: {pipeline!r} needs the Python package {error.name!r}") from error
    if variant == DEFAULT_VARIANT:
        entry: type[PipelineConfig] = module.EntryClass
        return entry
    variants = dict(getattr(module, "Variants", {}) or {})
    if variant not in variants:
        known = ", ".join([DEFAULT_VARIANT, *sorted(variants)])
        raise ConfigError(f"variant: {pipeline!r} has no {variant!r}, it has {known}")
    found = variants[variant]
    # A class, or where to import it from.
    return import_string(found.replace(":", ".")) if isinstance(found, str) else found  # type: ignore[no-any-return]


def build(config: PodConfig) -> PipelineConfig:
    """sglang-omni's configuration of the whole pipeline, with the pod file's placement, shares and arguments."""
    kind = pipeline_class(config.pipeline, config.variant)
    declared = {stage.name: stage for stage in config.stages}
    try:
        defaults = kind(model_path=config.model_path, name=config.served_name)
        check_names(declared, [stage.name for stage in defaults.stages])
        stages = [
            type(stage).model_validate({**stage.model_dump(), **changes(stage, declared[stage.name], config)})
            for stage in defaults.stages
        ]
        placement_policy = None if config.device is Device.CPU else defaults.placement_policy
        pipeline = kind(
            model_path=config.model_path,
            name=config.served_name,
            stages=stages,
            placement_policy=placement_policy,
            mps="off",  # the driver's daemon is there already; sglang-omni would refuse it as foreign
        )
    except ValidationError as error:
        raise ConfigError(f"sglang-omni refuses the pipeline: {first_problem(error)}") from error
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(f"sglang-omni: {error}") from error
    check_splits(pipeline)
    return pipeline


def first_problem(error: ValidationError) -> str:
    """One line of pydantic's many."""
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}" if place else str(problem["msg"])


def check_names(declared: Mapping[str, StageConfig], known: list[str]) -> None:
    """The file must name exactly the pipeline's stages."""
    for name in declared:
        if name not in known:
            raise ConfigError(f"stages: the pipeline has no {name!r}, it has {', '.join(known)}")
    missing = [name for name in known if name not in declared]
    if missing:
        raise ConfigError(f"stages: {', '.join(missing)} missing")


def check_splits(pipeline: PipelineConfig) -> None:
    """Refuse what cannot be spread over pods: state that is handed over in memory, and Unix sockets of a server."""
    processes = {stage.name: stage.process for stage in pipeline.stages}
    for source, target in sorted(type(pipeline).process_local_edges()):
        if processes.get(source) != processes.get(target):
            raise ConfigError(
                f"stages: {source} hands {target} state in memory, so both need the same process; "
                f"they have {processes.get(source)} and {processes.get(target)}"
            )
    for stage in pipeline.stages:
        if stage.http_routes:
            raise ConfigError(
                f"stages: {stage.name} serves {', '.join(stage.http_routes)} over a Unix socket of the server's "
                "machine, so it cannot be a pod of its own"
            )
    if pipeline.services:
        names = ", ".join(service.name for service in pipeline.services)
        raise ConfigError(f"pipeline: it needs services beside it that no pod runs: {names}")


def changes(stage: Any, declared: StageConfig, config: PodConfig) -> dict[str, Any]:
    """Fields of one stage that differ from the pipeline's own defaults."""
    on_gpu = config.device is Device.CUDA and bool(declared.slots)
    return {
        "process": declared.process,
        **placement(stage, declared.slots if on_gpu else ()),
        **(memory(stage, declared, config) if on_gpu else {"gpu_memory_fraction": None, "total_reserve_bytes": None}),
        **arguments(stage, declared, config),
    }


def placement(stage: Any, slots: tuple[int, ...]) -> dict[str, Any]:
    """Where the stage computes, in the replica's slots."""
    if not slots:
        return {"gpu": None, "tp_size": 1, "runtime_gpu_ids": None}
    if stage.runtime_gpu_ids is not None:
        return {"gpu": slots[0], "tp_size": 1, "runtime_gpu_ids": list(slots)}
    return {"gpu": slots[0] if len(slots) == 1 else list(slots), "tp_size": len(slots)}


def memory(stage: Any, declared: StageConfig, config: PodConfig) -> dict[str, Any]:
    """The budget in one of sglang-omni's two units: bytes where the KV cache is given in bytes, a share otherwise.

    A stage of another pod has none in the file, and gets the least that sglang-omni takes for one: it refuses stages
    without a budget where a GPU is shared, and the sum was proved before any pod was made.

    In bytes sglang-omni caps torch's allocator. With a share the KV cache fills the share to the brim, so such a cap
    would fail the capture of CUDA graphs; `specs` caps stages that have no KV cache. Where MPS limits the process to
    its budget, the share is smaller by `headroom_bytes`: room for the graphs, and for CUDA itself.
    """
    if declared.kv_cache_bytes is not None and type(stage).engine_stage:
        return {"gpu_memory_fraction": None, "total_reserve_bytes": declared.memory_bytes}
    fraction = share(declared, config)
    if fraction is None and declared.process != config.process:
        fraction = float(SMALLEST_SHARE)
    return {"gpu_memory_fraction": fraction, "total_reserve_bytes": None}


def share(declared: StageConfig, config: PodConfig) -> float | None:
    """The budget as sglang-omni's fraction of the whole card, rounded down.

    sglang-omni adds fractions up as floats and allows a billionth above the limit: shares that exactly fill a card must
    not exceed it by their rounding.
    """
    if declared.memory_share is not None:
        exact = Decimal(declared.memory_share)
    elif declared.memory_bytes is not None and config.card_memory_bytes:
        exact = Decimal(declared.memory_bytes) / Decimal(config.card_memory_bytes)
    else:
        return None
    if config.card_memory_bytes:
        exact -= Decimal(declared.headroom_bytes) / Decimal(config.card_memory_bytes)
    return float(max(exact.quantize(SMALLEST_SHARE, ROUND_DOWN), SMALLEST_SHARE))


def arguments(stage: Any, declared: StageConfig, config: PodConfig) -> dict[str, Any]:
    """`engine` and `factory`: each of the user's arguments goes where its name is known."""
    has_engine = type(stage).engine_stage
    engine = dict(stage.engine.model_dump(exclude_none=True)) if has_engine and stage.engine is not None else {}
    factory = dict(stage.factory.model_dump(exclude_none=True))
    if declared.kv_cache_bytes is not None and has_engine:
        engine.pop("mem_fraction_static", None)
        engine.pop("max_total_tokens", None)
        engine["kv_cache_bytes"] = declared.kv_cache_bytes
    if config.device is Device.CPU and has_engine:
        engine |= cpu.ENGINE_ARGS
    engine_names = engine_argument_names() if has_engine and declared.engine_args else frozenset()
    factory_names = factory_argument_names(stage) if declared.engine_args else frozenset()
    for name, value in declared.engine_args.items():
        if name in engine_names:
            engine[name] = value
        elif name in factory_names:
            factory[name] = value
        else:
            raise ConfigError(f"stages.{stage.name}.engine_args.{name}: {unknown(name, engine_names | factory_names)}")
    return {**({"engine": engine} if has_engine else {}), "factory": factory}


def unknown(name: str, known: frozenset[str]) -> str:
    """What to say of an argument that nobody takes. SGLang takes hundreds, so the nearest come first."""
    if not known:
        return "unknown; this stage takes no arguments"
    nearest = difflib.get_close_matches(name, known, n=3)
    hint = f"nearest: {', '.join(nearest)}; " if nearest else ""
    return f"unknown; {hint}this stage takes: {', '.join(sorted(known))}"


def engine_argument_names() -> frozenset[str]:
    """What SGLang's ServerArgs take, less what the pod's file owns."""
    server_args = importlib.import_module("sglang.srt.server_args").ServerArgs
    owned = {"model_path", "tokenizer_path", "tp_size", "base_gpu_id", "kv_cache_bytes"}
    return frozenset({*server_args.__struct_fields__, *EngineArgs.model_fields}) - owned


def factory_argument_names(stage: Any) -> frozenset[str]:
    """What the stage's own factory takes, less what sglang-omni's placement owns."""
    owned = {"model_path", "gpu_id", "tp_rank", "tp_size", "nccl_port", "server_args_overrides"}
    owned |= {"total_gpu_memory_fraction", "process_total_gpu_memory_fraction", "device"}
    names = set(inspect.signature(import_string(stage.factory_path)).parameters)
    return frozenset(names) - owned - {"args", "kwargs"}
