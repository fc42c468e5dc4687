"""The environment in which a stage's process has to start: sglang-omni's for the stage, and the pod's devices.

Some of it is read when torch or SGLang is imported, or even before Python starts (LD_PRELOAD). But which variables a
stage wants is only known after sglang-omni's configuration has been imported, which imports torch. So the process
replaces itself once, with the right environment, where anything differs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping

from sglang_omni.pipeline.stage_workers import StageWorkerProcessSpec, patched_spawn_env

from omni_stage.contract import Device, PodConfig, StageConfig

RESTARTED = "OMNI_STAGE_ENVIRONMENT_SET"


def set_devices(environment: MutableMapping[str, str], config: PodConfig, own: list[StageConfig]) -> None:
    """Number the container's GPUs for CUDA, and say to SGLang when there is just one."""
    slots = {slot for stage in own for slot in stage.slots}
    if config.device is not Device.CUDA or not slots:
        return
    environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(str(ordinal) for ordinal in range(len(slots))))
    if len(slots) == 1:
        environment["SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS"] = "true"


def wanted(spec: StageWorkerProcessSpec) -> dict[str, str]:
    """The whole environment that sglang-omni would start this process in."""
    with patched_spawn_env(spec):
        return dict(os.environ)


def restart_with(environment: Mapping[str, str]) -> None:
    """Replace this process where its environment differs; returns where it does not, or has been set before."""
    if dict(environment) != dict(os.environ) and RESTARTED not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environment, RESTARTED: "1"})
