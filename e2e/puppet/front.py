"""The front's engine, played: it serves no model; it is ready when its stages are, by the real front's own watch."""

from __future__ import annotations

import asyncio
import sys

from omni_stage import report
from omni_stage.engine.failures import reported
from omni_stage.files import read_config
from omni_stage.front.watch import Watch, pods_of
from omni_stage.report import Phase, Report

PULSE_SECONDS = 0.2


def main() -> None:
    """For ever."""
    with reported():
        config = read_config(sys.argv[1])
        asyncio.run(serve(Watch(pods_of(config.stages), lambda pod, event: None)))


async def serve(watch: Watch) -> None:
    """Tell the supervisor for which stages it waits."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch.run())
        while True:
            missing = watch.missing()
            report.send(Report(Phase.WAITING, f"waiting for {missing}") if missing else Report(Phase.READY))
            await asyncio.sleep(PULSE_SECONDS)


if __name__ == "__main__":
    main()
