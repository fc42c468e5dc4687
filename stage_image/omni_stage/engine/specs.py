"""From sglang-omni's pipeline configuration to what one pod's process has to start, with the pods' addresses in it."""

from __future__ import annotations

import inspect
import multiprocessing
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_omni.config import PipelineConfig
from sglang_omni.pipeline import runtime_config
from sglang_omni.pipeline.mp_runner import build_stage_groups
from sglang_omni.pipeline.runtime_config import IpcRuntimeDir, PipelineRuntimePrep
from sglang_omni.pipeline.stage_workers import StageGroup, StageLaunchConfig
from sglang_omni.utils.cpu import effective_cpu_count
from sglang_omni.utils.imports import import_string

from omni_stage.contract import POD_IP_VARIABLE, ConfigError, PodConfig, StageConfig

ACK_TIMEOUT_SECONDS = 300.0
"""How long a stage waits for a neighbour to take data over. sglang-omni's 30 s would end it while a pod restarts; the
front ends the requests concerned long before."""
SELF_SIZING = frozenset({"server_args_overrides", "total_gpu_memory_fraction", "process_total_gpu_memory_fraction"})
"""Arguments of a stage factory that sizes a KV cache by its share."""


@dataclass(frozen=True)
class Plan:
    """What every pod of the replica computes alike."""

    prep: PipelineRuntimePrep
    endpoints: dict[str, str]
    groups: list[StageGroup]


def endpoints(config: PodConfig) -> dict[str, str]:
    """Where each of sglang-omni's sockets is found by its peers.

    Ranks of a tensor-parallel stage share a pod, and nobody else speaks with any but the first: the others use Unix
    sockets of the abstract kind, which belong to the pod's network namespace and leave no file.
    """
    front = config.front
    found = {
        "completion": f"tcp://{front.host}:{front.completion_port}",
        "abort": f"tcp://{front.host}:{front.abort_port}",
    }
    for stage in config.stages:
        found[f"stage_{stage.name}"] = f"tcp://{stage.host}:{stage.control_port}"
        found[f"comm_{stage.name}_rank0"] = f"tcp://{stage.host}:{stage.rank_port}"
        for rank in range(1, stage.tensor_parallel_size):
            found[f"comm_{stage.name}_rank{rank}"] = f"ipc://@omni-{stage.name}-rank{rank}"
    return found


def bind_address(endpoint: str) -> str:
    """The wildcard address of one's own endpoint: peers connect by name, the owner listens on every interface."""
    scheme, _, rest = endpoint.partition("://")
    return endpoint if scheme == "ipc" else f"tcp://*:{rest.rpartition(':')[2]}"


def plan(config: PodConfig, pipeline: PipelineConfig) -> Plan:
    """Let sglang-omni plan the whole pipeline. Raises ConfigError with its words where it refuses."""
    # It counts the GPUs that this process sees; a pod sees its own, the plan covers the replica's.
    runtime_config.visible_device_count = lambda: None
    try:
        # It also allots Unix sockets in this folder, which is never made: they are replaced by addresses of pods.
        prep = runtime_config.prepare_pipeline_runtime(pipeline, ipc_runtime_dir=IpcRuntimeDir(Path("/unused")))
        addresses = endpoints(config)
        groups = build_stage_groups(
            pipeline,
            multiprocessing.get_context("spawn"),
            stages_cfg=prep.stages_cfg,
            endpoints=addresses,
            placement_plan=prep.placement_plan,
            process_plan=prep.process_plan,
            replica_topology=prep.replica_topology,
        )
    except ValueError as error:
        raise ConfigError(f"sglang-omni refuses the layout: {error}") from error
    return Plan(prep, addresses, groups)


def own_group(config: PodConfig, whole: Plan) -> StageGroup:
    """The group of this pod's process, made to speak with other pods."""
    own = [stage for stage in config.stages if stage.process == config.process]
    names = {stage.name for stage in own}
    group = next(g for g in whole.groups if {spec.stage_name for spec in g.specs} == names)
    threads = max(1, effective_cpu_count() // len(whole.groups))
    ordinals = device_ordinals(own)
    by_name = {stage.name: stage for stage in own}
    remote = {stage.name for stage in config.stages} - names
    for process in group.process_specs:
        process.cpu_threads = threads
        for spec in process.stage_specs:
            make_remote(spec, by_name[spec.stage_name], remote)
            if spec.gpu_id is not None:
                use_ordinals(spec, ordinals)
    return group


def device_ordinals(stages: Iterable[StageConfig]) -> dict[int, int]:
    """Slot -> number of the device in the container: its slots in ascending order, from 0."""
    slots = sorted({slot for stage in stages for slot in stage.slots})
    return {slot: ordinal for ordinal, slot in enumerate(slots)}


def make_remote(spec: StageLaunchConfig, stage: StageConfig, remote: set[str]) -> None:
    """Bind to the wildcard, and take the relay to every stage of another pod."""
    if spec.owns_external_io:
        spec.recv_endpoint = bind_address(spec.recv_endpoint)
    spec.rank_endpoints = dict(spec.rank_endpoints)
    spec.rank_endpoints[stage.name] = tuple(bind_address(e) for e in spec.rank_endpoints[stage.name])
    spec.remote_stage_names = set(remote)
    comm: dict[str, Any] = dict(spec.comm_config)
    comm["ack_timeout_s"] = ACK_TIMEOUT_SECONDS
    comm["mooncake_hostname"] = relay_address(stage, os.environ)
    spec.comm_config = comm


def relay_address(stage: StageConfig, environment: Mapping[str, str]) -> str:
    """Where receivers fetch this stage's tensors: at the pod's own address, for a pod that takes over its name does not
    have them."""
    host = environment.get(POD_IP_VARIABLE) or stage.host
    return f"[{host}]:{stage.relay_port}" if ":" in host else f"{host}:{stage.relay_port}"


def cap_memory(spec: StageLaunchConfig, stage: StageConfig) -> None:
    """Cap torch's allocator at the stage's bytes where nothing in it fills a share to the brim (see `pipeline`).

    What does, asks for the share by name. Imports the stage's factory.
    """
    asked_for = set(inspect.signature(import_string(spec.factory)).parameters)
    if stage.memory_bytes is not None and spec.gpu_id is not None and not asked_for & SELF_SIZING:
        spec.total_reserve_bytes = stage.memory_bytes


def use_ordinals(spec: StageLaunchConfig, ordinals: dict[int, int]) -> None:
    """Number the devices as this container sees them; the slot stays as the placement's."""
    assert spec.gpu_id is not None
    ordinal = ordinals[spec.gpu_id]
    spec.placement_gpu_id = spec.gpu_id
    spec.gpu_id = ordinal
    for arguments in (spec.typed_kwargs, spec.factory_arg_defaults, spec.comm_config):
        if arguments.get("gpu_id") is not None:
            arguments["gpu_id"] = ordinal
    native = spec.factory_kwargs.get("runtime_gpu_ids")
    if isinstance(native, list):
        spec.factory_kwargs["runtime_gpu_ids"] = [ordinals[slot] for slot in native]
