"""The controller within the test's own process, against a real API server, for tests that count or fail its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from kubernetes.aio.client.configuration import Configuration

from omni_operator.kube.client import Client
from omni_operator.rendering import Settings
from omni_operator.runtime.controller import Controller, Key
from omni_operator.runtime.metrics import Metrics
from omni_operator.runtime.reconcile import Clock, Pass
from tests.api.conftest import Api
from tests.api.fault_proxy import FaultProxy
from tests.api.test_operator import declared


def now() -> datetime:
    return datetime.now(UTC)


class Watching(Controller):
    """What an event of a child would do, without a watch: a pass that wrote something is followed by another."""

    def _record(self, key: Key, done: Pass | None) -> None:
        super()._record(key, done)
        if done is not None and not done.step.empty:
            self.queue.add(key)


@asynccontextmanager
async def controller(faulty: FaultProxy, namespace: str, clock: Clock = now) -> AsyncIterator[Controller]:
    configuration = Configuration()
    configuration.host = faulty.url
    async with Client(configuration) as client:
        found = Watching(client, Settings("stage:1"), Metrics(), namespace, clock=clock)
        task = asyncio.create_task(found.run())
        yield found
        assert not task.done(), "nothing ends the workers"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def looked_at(running: Controller, key: Key) -> AsyncIterator[None]:
    """What the watch would bring, and more: a pass ten times a second."""

    async def nudge() -> None:
        while True:
            running.queue.add(key)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(nudge())
    try:
        yield
    finally:
        task.cancel()


def model(name: str) -> dict[str, Any]:
    manifest = declared("tiny-omni")
    manifest["metadata"]["name"] = name
    return manifest


def put(api: Api, manifest: dict[str, Any]) -> None:
    """Faster than kubectl, of which a matrix of faults would need hundreds."""
    name = manifest["metadata"]["name"]
    if api.get("omnimodels", name) is None:
        api.call("POST", api.path("omnimodels"), manifest)
    else:
        api.call("PATCH", api.path("omnimodels", name), manifest, "application/merge-patch+json")
