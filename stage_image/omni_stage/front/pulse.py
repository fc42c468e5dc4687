"""The front tells its supervisor every second, and at once when it closes or opens, how it is: ready when its stages
are and its own server answers."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from typing import Any

from omni_stage import report
from omni_stage.contract import PodConfig
from omni_stage.front.admission import Admission
from omni_stage.front.watch import Watch
from omni_stage.report import Phase, Report

PULSE_SECONDS = 1.0
ANSWER_SECONDS = 5.0


async def pulse(config: PodConfig, coordinator: Any, watch: Watch, admission: Admission) -> None:
    """For as long as the front lives."""
    url = f"http://127.0.0.1:{config.front.api_port}/health"
    while True:
        problem = watch.missing() or admission.reason or await asyncio.to_thread(server_problem, url)
        gauges = {
            "active_requests": float(len(coordinator.requests)),
            "ready_pods": float(sum(pod.ready for pod in watch.pods)),
            "lost_stages_total": float(admission.closings),
        }
        if problem:
            report.send(Report(phase=Phase.WAITING, detail=f"waiting for {problem}", gauges=gauges))
        else:
            report.send(Report(phase=Phase.READY, gauges=gauges))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PULSE_SECONDS):
                await admission.changed.wait()
        admission.changed.clear()


def server_problem(url: str) -> str:
    """Why the front's own server is not ready; empty when it is. Blocks."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        return f"the server, which answers {error.code}"
    except OSError as error:
        return f"the server: {getattr(error, 'reason', error)}"
