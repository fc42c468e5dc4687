"""Run by the stage environment's Python: a tensor-parallel stage of two ranks, on the CPU, as a pod would run it.

Its reports go to standard output.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from omni_stage.engine import cpu

cpu.prepare(os.environ)
FACTORY = "tests.stage.two_ranks.create_rank"


def create_rank(tp_rank: int, tp_size: int, nccl_port: int, gpu_id: int | None = None) -> Any:
    """Stage factory: says which rank it is."""
    from sglang_omni.scheduling.simple_scheduler import SimpleScheduler

    print(f"rank {tp_rank} of {tp_size} in process {os.getpid()}", flush=True)
    return SimpleScheduler(lambda payload: payload)


def main() -> None:
    """Until told to stop."""
    from sglang_omni.config import PipelineConfig, StageConfig

    from omni_stage.engine import specs
    from omni_stage.engine.failures import reported
    from omni_stage.engine.run import run_ranks
    from tests.stage.pods import tiny_config

    template = tiny_config()
    stage = replace(template.stages[1], slots=(0, 1), tensor_parallel_size=2)
    config = replace(template, stages=(stage,), process=stage.process)
    upstream = StageConfig(
        name=stage.name, process=stage.process, factory_path=FACTORY, gpu=[0, 1], tp_size=2, terminal=True
    )
    pipeline = PipelineConfig(model_path="org/model", stages=[upstream])
    with reported():
        asyncio.run(run_ranks(specs.own_group(config, specs.plan(config, pipeline)), stage))


if __name__ == "__main__":
    main()
