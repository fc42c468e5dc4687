"""Measured memory of stages: whom to ask for it, and which figures the status keeps. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from omni_operator.api.quantities import MIB
from omni_operator.planning.observed import STAGE, ObservedPod, StagePage

LEAST_CHANGE = 64 * MIB
LEAST_RATIO = 20
"""A figure that differs by no more than 1/20 is the same: PyTorch's reserve breathes, and each write is seen by all."""
FIRST_LOOK = timedelta(seconds=20)
"""An engine tells its memory within seconds of being ready (its heartbeat is 2 s); nothing tells us when."""
PATIENCE = timedelta(seconds=15)
"""A container that runs for so long without being ready is asked whether it misses its MPS control daemon."""


def worth_asking(pod: ObservedPod, now: datetime) -> bool:
    """A stage pod that runs, and is ready or should tell why not."""
    if pod.component != STAGE or not pod.address or pod.deleting or pod.started is None:
        return False
    return pod.ready or not now - PATIENCE < pod.started <= now


def kept(page: StagePage | None, gpus: int, before: tuple[int | None, str | None]) -> tuple[int | None, str | None]:
    """(bytes, kind) for the status of a stage that is ready: on each of its GPUs, or of the host. What was kept before
    stays while nothing new is known, or nothing new that matters."""
    if page is None or page.memory_bytes is None:
        return before
    new = page.memory_bytes // max(1, gpus) if page.memory_kind == "torch" else page.memory_bytes
    old, kind = before
    if old is not None and kind == page.memory_kind and abs(new - old) <= max(LEAST_CHANGE, old // LEAST_RATIO):
        return before
    return new, page.memory_kind


def look_again(pods: Iterable[ObservedPod], now: datetime) -> timedelta | None:
    """When to look again though no event may come: soon after a stage became ready, and while one that runs is not."""
    running = [pod for pod in pods if pod.component == STAGE and pod.address and pod.started and not pod.deleting]
    waits = [FIRST_LOOK - (now - pod.ready_since) for pod in running if pod.ready and pod.ready_since is not None]
    waits += [PATIENCE - (now - pod.started) for pod in running if not pod.ready and pod.started is not None]
    # Where clocks differ, a time may be in the future.
    return min((min(wait, FIRST_LOOK) for wait in waits if wait > timedelta(0)), default=None)
