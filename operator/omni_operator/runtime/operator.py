"""The operator's process: kopf watches, events become keys, the controller does the rest."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from omni_operator.api import names
from omni_operator.kube.client import OMNI_MODELS, Client, KubeError, connect
from omni_operator.kube.lease import lead
from omni_operator.rendering import Settings
from omni_operator.runtime import health
from omni_operator.runtime.controller import Controller
from omni_operator.runtime.metrics import Metrics
from omni_operator.runtime.settings import OperatorSettings
from omni_operator.runtime.watch import watch

log = logging.getLogger("omni_operator")


async def run(settings: OperatorSettings) -> None:
    """Serve health, take the Lease, then watch and reconcile until SIGTERM or SIGINT.

    Raises KubeError or RuntimeError when the Lease is lost or watching ends: the process must not go on alone.
    """
    metrics = Metrics()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = await health.serve(settings.health_port, metrics, lambda: True, lambda: True)
    try:
        await _first_to_end(stop.wait(), _work(settings, metrics))
    finally:
        await server.cleanup()


async def _work(settings: OperatorSettings, metrics: Metrics) -> None:
    async with await connect() as client:
        controller = Controller(
            client,
            Settings(settings.stage_image, settings.image_pull_policy),
            metrics,
            settings.namespace,
            settings.workers,
            settings.resync_seconds,
        )
        async with lead(client, settings.lease_namespace, settings.pod_name) as lost:
            await _require_crd(client, settings.namespace)
            log.info("leading; watching %s", settings.namespace or "all namespaces")
            watching = watch(settings.namespace, settings.pod_name, controller.queue.add)
            await _first_to_end(controller.run(), watching, _raise_when(lost))


async def _require_crd(client: Client, namespace: str) -> None:
    """kopf would wait in silence for a kind that the cluster does not know; kubelet's restarts are visible."""
    try:
        await client.list_all(OMNI_MODELS, namespace or None)
    except KubeError as error:
        if error.status == 404:
            remedy = "install it with the chart (crds.install=true) or from crds/"
            raise KubeError("start", 404, "NoResource", f"the cluster has no kind {names.KIND}; {remedy}") from error
        raise


async def _raise_when(lost: asyncio.Event) -> None:
    await lost.wait()
    raise KubeError("lease", 0, "Lost", "another operator may lead now")


async def _first_to_end(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Run all; when one ends, cancel the others and raise its error, if it has one."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
