"""Stopping a stage: finish what it has, then tell it through its own control socket, as the coordinator would."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from sglang_omni.pipeline.control_plane import PushSocket
from sglang_omni.proto import ShutdownMessage

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1


async def drain(stages: Sequence[Any], control_ports: Sequence[int], patience: float) -> None:
    """Wait up to `patience` seconds for requests in flight, then shut the stages down."""
    try:
        async with asyncio.timeout(patience):
            while any(stage.active_requests for stage in stages):  # noqa: ASYNC110  # sglang-omni's sets tell nobody
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        logger.warning("stopping with %d requests in flight", sum(len(s.active_requests) for s in stages))
    for port in control_ports:
        socket = PushSocket(f"tcp://127.0.0.1:{port}")
        await socket.connect()
        await socket.send(ShutdownMessage())
