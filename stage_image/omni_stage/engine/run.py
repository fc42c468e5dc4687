"""Run the stages of one pod's process with sglang-omni's own code, in this process where that is possible."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from typing import Any

from sglang_omni.pipeline import stage_workers
from sglang_omni.pipeline.stage.runtime import Stage
from sglang_omni.pipeline.stage_workers import StageGroup, StageLaunchConfig

from omni_stage import report
from omni_stage.contract import ConfigError, PodConfig, StageConfig
from omni_stage.engine import environment, failures, relay, sockets, specs, transfers
from omni_stage.engine.drain import drain
from omni_stage.engine.heartbeat import beat
from omni_stage.engine.pipeline import build
from omni_stage.report import Phase, Report

RANK_POLL_SECONDS = 1.0


def run(config: PodConfig) -> None:
    """Returns when the stages have stopped as asked; raises when they failed."""
    own = [stage for stage in config.stages if stage.process == config.process]
    environment.set_devices(os.environ, config, own)
    group = specs.own_group(config, specs.plan(config, build(config)))
    report.send(Report(phase=Phase.LOADING, detail=f"loading {', '.join(stage.name for stage in own)}"))
    if len(group.process_specs) > 1:
        asyncio.run(run_ranks(group, own[0]))
        return
    process = group.process_specs[0]
    environment.restart_with(environment.wanted(process))
    for spec in process.stage_specs:
        specs.cap_memory(spec, next(stage for stage in own if stage.name == spec.stage_name))
    install()
    stages = collect_stages()
    stage_workers.stage_process_main(process, Ready(stages, config, own), Failures())


def install() -> None:
    """Put this package's relay and transfers into sglang-omni, in this process."""
    sockets.install()
    relay.install()
    transfers.install()


def collect_stages() -> list[Stage]:
    """A list that fills with the stages as sglang-omni constructs them."""
    stages: list[Stage] = []
    construct = stage_workers.construct_stage

    def remember(*arguments: Any, **named: Any) -> Stage:
        stage = construct(*arguments, **named)
        stages.append(stage)
        return stage

    stage_workers.construct_stage = remember
    return stages


class Ready:
    """Stands in for the event by which sglang-omni's stage process says that it serves; set inside its event loop."""

    def __init__(self, stages: list[Stage], config: PodConfig, own: list[StageConfig]) -> None:
        self.stages, self.config, self.own = stages, config, own
        self.tasks: set[asyncio.Task[None]] = set()

    def set(self) -> None:
        """Tell the supervisor, go on telling, and obey SIGTERM from now on."""
        report.send(Report(phase=Phase.READY))
        loop = asyncio.get_running_loop()
        self.tasks.add(loop.create_task(beat(self.stages)))
        loop.add_signal_handler(signal.SIGTERM, self._on_stop)

    def _on_stop(self) -> None:
        ports = [stage.control_port for stage in self.own]
        patience = self.config.drain_timeout_seconds
        self.tasks.add(asyncio.get_running_loop().create_task(drain(self.stages, ports, patience)))


class Failures:
    """Stands in for the queue by which sglang-omni's stage process hands over its traceback."""

    def put(self, text: str) -> None:
        """Tell the supervisor."""
        failures.tell(text)


def run_rank(spec: StageLaunchConfig, ready: Any, errors: Any) -> None:
    """Entry point of a rank's own process: sglang-omni's, with this package's parts in place."""
    install()
    stage_workers.stage_process_main(spec, ready, errors)


async def run_ranks(group: StageGroup, stage: StageConfig) -> None:
    """A tensor-parallel stage: sglang-omni starts one process for each rank below this one, and this one watches."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    # The ranks' processes import what they start by name; this name carries the relay along.
    main, stage_workers.stage_process_main = stage_workers.stage_process_main, run_rank
    try:
        group.spawn(multiprocessing.get_context("spawn"))
    finally:
        stage_workers.stage_process_main = main
    await group.wait_ready(float("inf"))  # the supervisor's own limit ends a start that hangs
    report.send(Report(phase=Phase.READY))
    while not stop.is_set():
        if group.any_dead():
            raise RuntimeError(f"a rank of {stage.name} ended: {group.dead_summary()}")
        report.send(Report())
        try:
            async with asyncio.timeout(RANK_POLL_SECONDS):
                await stop.wait()
        except TimeoutError:
            pass
    await drain([], [stage.control_port], 0)
    await group.shutdown(join_timeout=30.0)


__all__ = ["ConfigError", "run", "run_rank"]
