"""A stage's engine, played: becomes ready when it is told to, says that it holds its share, and obeys orders."""

from __future__ import annotations

import os
import sys
import time

from omni_stage import report, strings
from omni_stage.contract import PodConfig
from omni_stage.engine.failures import reported
from omni_stage.files import read_config
from omni_stage.report import Phase, Report

BEAT_SECONDS = 1.0
POLL_SECONDS = 0.05


def main() -> None:
    """Until it is told to end, or killed."""
    with reported():
        config = read_config(sys.argv[1])
        names = [stage.name for stage in config.stages if stage.process == config.process]
        report.send(Report(phase=Phase.LOADING, detail=f"loading {', '.join(names)}"))
        if order := os.environ.get("PUPPET_AT_START"):
            strings.obey(order)
        live(until=time.monotonic() + strings.ready_after())
        report.send(Report(phase=Phase.READY, memory_bytes=held(config)))
        live()


def live(until: float = float("inf")) -> None:
    """Beat, and obey what comes."""
    file, beat = strings.orders_file(), 0.0
    while (now := time.monotonic()) < until:
        if now >= beat:
            report.send(Report())
            beat = now + BEAT_SECONDS
        if order := strings.next_order(file):
            strings.obey(order)
        time.sleep(POLL_SECONDS)


def held(config: PodConfig) -> int:
    """Bytes on all of its GPUs: the whole of its budgets, as an engine takes it."""
    own = [stage for stage in config.stages if stage.process == config.process]
    return sum((stage.memory_bytes or 0) * len(stage.slots) for stage in own)


if __name__ == "__main__":
    main()
