"""The DRA driver's answers to faults: the kubelet's health stream, and a slice that is published again with taints."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from e2e.fake_gpu.faults import Faults
from e2e.fake_gpu.profiles import Gpu

health, health_services = grpc.protos_and_services("e2e/fake_gpu/protos/health.proto")
HealthService: Any = health_services.DRAResourceHealthServicer
LOG = logging.getLogger(__name__)
LOOK_SECONDS = 0.3
REPEAT_SECONDS = 10.0  # the kubelet forgets what it was not told for 30


class Health(HealthService):  # type: ignore[misc]  # made at run time
    """Tells the kubelet how each GPU is, at once when that changes and now and then."""

    def __init__(self, pool: str, gpus: list[Gpu], faults: Callable[[], Faults]) -> None:
        self._pool = pool
        self._gpus = gpus
        self._faults = faults

    def NodeWatchResources(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        told, due = None, 0.0
        while context.is_active():
            faults = self._faults()
            if faults != told or time.monotonic() >= due:
                yield health.NodeWatchResourcesResponse(devices=[self._of(gpu, faults) for gpu in self._gpus])
                told, due = faults, time.monotonic() + REPEAT_SECONDS
            time.sleep(LOOK_SECONDS)

    def _of(self, gpu: Gpu, faults: Faults) -> Any:
        return health.DeviceHealth(
            device=health.DeviceIdentifier(pool_name=self._pool, device_name=gpu.name),
            health=health.HEALTHY if faults.healthy(gpu.name) else health.UNHEALTHY,
            last_updated_time=int(time.time()),
            message=faults.message(gpu.name),
        )


def follow(faults: Callable[[], Faults], published: Faults, publish: Callable[[Faults], None]) -> threading.Thread:
    """Publish again whenever the faults are other than the published ones, in a thread of its own."""

    def watch() -> None:
        last = published
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                if (now := faults()) != last:
                    publish(now)
                    last = now
                    LOG.info("faults: %s", sorted(now.of) or "none")
            except Exception:  # the API server may be away for a moment; it is tried again
                LOG.exception("publishing faults")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
