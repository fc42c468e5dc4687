"""Run by the stage environment's Python: what the launcher makes of every pipeline that sglang-omni has.

Prints one JSON object: `pipeline/variant` -> the specs of each of its pods, or the error that refused it.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from omni_stage.engine import cpu

warnings.filterwarnings("ignore")
logging.disable(logging.ERROR)
cpu.prepare(os.environ)

import sglang_omni.models  # noqa: E402
from pydantic import ValidationError  # noqa: E402
from sglang_omni.relay.base import RELAY_REGISTRY  # noqa: E402

from omni_stage.checks import check  # noqa: E402
from omni_stage.contract import ConfigError, Device, FrontConfig, PodConfig, Role, StageConfig  # noqa: E402
from omni_stage.engine import specs  # noqa: E402
from omni_stage.engine.pipeline import build, pipeline_class  # noqa: E402
from omni_stage.engine.relay import NAME, install  # noqa: E402

FULL = ("0.333333334", "0.333333334", "0.111111112", "0.111111112", "0.111111112")
VOICE = ("talker_ar", "code2wav")


def pipelines() -> Iterator[tuple[str, str]]:
    """Every pipeline of sglang-omni with each of its variants, and ours."""
    yield "tiny_omni", "default"
    for module in pkgutil.iter_modules(sglang_omni.models.__path__):
        try:
            config = importlib.import_module(f"sglang_omni.models.{module.name}.config")
        except ModuleNotFoundError:
            continue
        yield module.name, "default"
        for variant in getattr(config, "Variants", {}) or {}:
            yield module.name, variant


def slots_of(stage: Any) -> tuple[int, ...]:
    """A stage's GPUs by the pipeline's own defaults."""
    if stage.runtime_gpu_ids is not None:
        return tuple(stage.runtime_gpu_ids)
    if stage.gpu is None:
        return ()
    return (stage.gpu,) if isinstance(stage.gpu, int) else tuple(stage.gpu)


def file_of(pipeline: str, variant: str) -> PodConfig:
    """A front's file with the pipeline's own processes, an even share on each GPU, and a host for each process."""
    defaults = pipeline_class(pipeline, variant)(model_path="org/model").stages
    users: dict[int, int] = {}
    for stage in defaults:
        for slot in slots_of(stage):
            users[slot] = users.get(slot, 0) + 1
    stages = tuple(
        StageConfig(
            name=stage.name,
            process=stage.process or stage.name,
            host=f"m-0-{(stage.process or stage.name).replace('_', '-')}",
            control_port=21010 + 2 * index,
            rank_port=21011 + 2 * index,
            relay_port=22000 + index,
            slots=slots_of(stage),
            tensor_parallel_size=max(1, len(slots_of(stage))),
            memory_share=f"0.{99 // max(users[s] for s in slots_of(stage)):02d}" if slots_of(stage) else None,
        )
        for index, stage in enumerate(defaults)
    )
    return PodConfig(
        role=Role.FRONT,
        name="m",
        namespace="default",
        replica=0,
        pipeline=pipeline,
        variant=variant,
        model_path="org/model",
        served_name="m",
        stages=stages,
        front=FrontConfig("m-0-front"),
        device=Device.CUDA,
    )


def spec_row(spec: Any) -> dict[str, Any]:
    """What the tests look at."""
    return {
        "stage": spec.stage_name,
        "bind": spec.recv_endpoint,
        "coordinator": spec.coordinator_endpoint,
        "abort": spec.abort_endpoint,
        "peers": spec.stage_endpoints,
        "rank": spec.rank_endpoints[spec.stage_name],
        "remote": sorted(spec.remote_stage_names),
        "gpu": spec.gpu_id,
        "slot": spec.placement_gpu_id,
        "fraction": spec.factory_arg_defaults.get("total_gpu_memory_fraction"),
        "reserve": spec.total_reserve_bytes,
        "kv": spec.kv_cache_bytes,
        "ack_timeout": spec.comm_config["ack_timeout_s"],
        "relay": spec.comm_config["mooncake_hostname"],
    }


def pods(config: PodConfig) -> dict[str, list[dict[str, Any]]]:
    """Process -> the specs of its pod, each derived as that pod would: from its own file alone."""
    found = {}
    for process in dict.fromkeys(stage.process for stage in config.stages):
        pod = replace(config, role=Role.STAGE, process=process, stages=tuple(own_budgets(config.stages, process)))
        check(pod)
        group = specs.own_group(pod, specs.plan(pod, build(pod)))
        found[process] = [spec_row(spec) for spec in group.specs]
    return found


def own_budgets(stages: tuple[StageConfig, ...], process: str) -> Iterator[StageConfig]:
    """The stages as the operator writes them into a pod's file: with the budgets of its own alone."""
    for stage in stages:
        own = stage.process == process
        yield stage if own else replace(stage, memory_bytes=None, memory_share=None, kv_cache_bytes=None)


def split(config: PodConfig) -> PodConfig:
    """A pod for each stage."""
    return replace(config, stages=tuple(replace(s, process=s.name, host=s.name) for s in config.stages))


def in_bytes(config: PodConfig) -> PodConfig:
    """Budgets in bytes, and a KV cache for the thinker."""
    card = 81559 << 20
    stages = [replace(s, memory_bytes=card // 10, memory_share="0.1") if s.slots else s for s in config.stages]
    return replace(
        config,
        card_memory_bytes=card,
        stages=tuple(replace(s, kv_cache_bytes=1 << 30) if s.name == "thinker" else s for s in stages),
    )


def with_headroom(config: PodConfig) -> PodConfig:
    """A hundredth of the card for each stage that has a budget."""
    room = (81559 << 20) // 100
    return replace(config, stages=tuple(replace(s, headroom_bytes=room) if s.slots else s for s in config.stages))


def row(make: Callable[[], PodConfig]) -> Any:
    """The pods, or why there are none."""
    try:
        return pods(make())
    except ValidationError:
        return "ValidationError"
    except (ConfigError, ModuleNotFoundError) as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """All rows."""
    install()
    rows: dict[str, Any] = {"relay": RELAY_REGISTRY[NAME].__module__}
    for pipeline, variant in pipelines():
        rows[f"{pipeline}/{variant}"] = row(lambda p=pipeline, v=variant: file_of(p, v))
        rows[f"split {pipeline}/{variant}"] = row(lambda p=pipeline, v=variant: split(file_of(p, v)))
    qwen = ("qwen3_omni", "speech-colocated")
    rows["bytes"] = row(lambda: in_bytes(file_of(*qwen)))
    rows["headroom"] = row(lambda: with_headroom(in_bytes(file_of(*qwen))))
    rows["full card"] = row(lambda: thirds(file_of("qwen3_omni", "speech-colocated")))
    rows["cpu"] = row(lambda: replace(file_of(*qwen), device=Device.CPU))
    rows["two slots in one process"] = row(lambda: together(file_of("qwen3_omni", "speech")))
    rows["tensor parallel"] = row(lambda: tensor_parallel(file_of("qwen3_omni", "speech")))
    json.dump(rows, sys.stdout)


def thirds(config: PodConfig) -> PodConfig:
    """Five stages that fill a card exactly, with shares that are rounded up in the ninth place."""
    shares = dict(zip(("image_encoder", "audio_encoder", "thinker", "talker_ar", "code2wav"), FULL, strict=True))
    return replace(config, stages=tuple(replace(s, memory_share=shares.get(s.name)) for s in config.stages))


def together(config: PodConfig) -> PodConfig:
    """Code2wav (slot 0) beside the talker (slot 1)."""
    stages = [replace(s, process="voice", host="voice") if s.name in VOICE else s for s in config.stages]
    return replace(config, stages=tuple(stages))


def tensor_parallel(config: PodConfig) -> PodConfig:
    """The thinker on slots 0 and 2."""
    stages = [replace(s, slots=(0, 2), tensor_parallel_size=2) if s.name == "thinker" else s for s in config.stages]
    return replace(config, stages=tuple(stages))


main()
