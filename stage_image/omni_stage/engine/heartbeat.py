"""The engine process tells every few seconds that its event loop turns, and what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch

from omni_stage import report
from omni_stage.engine.relay import COUNTERS
from omni_stage.report import Report

BEAT_SECONDS = 2.0


async def beat(stages: Sequence[Any]) -> None:
    """For as long as the process lives."""
    while True:
        report.send(Report(memory_bytes=gpu_memory(), gauges=gauges(stages)))
        await asyncio.sleep(BEAT_SECONDS)


def gpu_memory() -> int | None:
    """Bytes that torch's allocator holds on this process's GPUs; None without CUDA.

    Not NVML's figure: it lists memory by process ids of the host, which no container can match with its own.
    """
    if not torch.cuda.is_available():
        return None
    return sum(int(torch.cuda.memory_reserved(device)) for device in range(torch.cuda.device_count()))


def gauges(stages: Sequence[Any]) -> dict[str, float]:
    """For /metrics, under omni_stage_."""
    return {
        "active_requests": sum(len(stage.active_requests) for stage in stages),
        "relay_sent_bytes": COUNTERS.sent_bytes,
        "relay_received_bytes": COUNTERS.received_bytes,
        "relay_transfers": COUNTERS.transfers,
        "relay_failures": COUNTERS.failures,
        "relay_held_bytes": COUNTERS.held_bytes,
    }
