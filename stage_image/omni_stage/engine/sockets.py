"""ZeroMQ's sockets between pods: heartbeats, so that a pod that vanished without a word is noticed, and both IPs."""

from __future__ import annotations

import zmq
import zmq.asyncio
from sglang_omni.pipeline.control_plane import ControlPlaneContext

HEARTBEAT_MILLISECONDS = 5_000
HEARTBEAT_TIMEOUT_MILLISECONDS = 20_000
RECONNECT_MAX_MILLISECONDS = 2_000
"""A restarted pod is found again within this time."""


def install() -> None:
    """Make sglang-omni's ZeroMQ context with these as every socket's defaults. Before its first socket."""
    context = zmq.asyncio.Context()
    context.setsockopt(zmq.IPV6, 1)
    context.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MILLISECONDS)
    context.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MILLISECONDS)
    context.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MILLISECONDS)
    context.setsockopt(zmq.LINGER, 1_000)
    ControlPlaneContext.context = context
