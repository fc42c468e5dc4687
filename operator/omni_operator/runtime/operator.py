"""The operator's process: kopf watches, events become keys, the controller does the rest.

kopf handlers do nothing but put a key into the queue: they set no finalizers, annotate nothing and never fail.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import kopf

from omni_operator.api import names
from omni_operator.kube.client import connect
from omni_operator.kube.lease import lead
from omni_operator.rendering import Settings
from omni_operator.runtime import health
from omni_operator.runtime.controller import Controller, Key
from omni_operator.runtime.metrics import Metrics
from omni_operator.runtime.settings import OperatorSettings

log = logging.getLogger("omni_operator")

WATCHED_CHILDREN = (
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("resource.k8s.io", "v1", "resourceclaims"),
)


def watch(registry: kopf.OperatorRegistry, controller: Controller) -> None:
    """Register handlers that turn every event into its OmniModel's key."""

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def model_changed(namespace: str | None, name: str | None, **_: Any) -> None:
        controller.queue.add(Key(str(namespace), str(name)))

    async def child_changed(namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        owner = labels.get(names.MODEL_LABEL)
        if owner:
            controller.queue.add(Key(str(namespace), owner))

    for group, version, plural in WATCHED_CHILDREN:
        kopf.on.event(group, version, plural, id="child", registry=registry)(child_changed)


def kopf_settings() -> kopf.OperatorSettings:
    """kopf as a watcher only: no peering, no scanning of CRDs, children by our label, bounded waits."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.networking.request_timeout = 30
    for _, _, plural in WATCHED_CHILDREN:
        settings.watching.label_selectors[plural] = names.MODEL_LABEL
    return settings


async def run(settings: OperatorSettings) -> None:
    """Serve health, take the Lease, then watch and reconcile until told to stop, or until the Lease is lost."""
    metrics = Metrics()
    state = {"leading": False}
    server = await health.serve(settings.health_port, metrics, lambda: True, lambda: True)
    stop = asyncio.Event()
    try:
        async with await connect() as client:
            controller = Controller(
                client,
                Settings(settings.stage_image, settings.image_pull_policy),
                metrics,
                settings.workers,
                settings.resync_seconds,
            )
            registry = kopf.OperatorRegistry()
            watch(registry, controller)
            async with lead(client, settings.lease_namespace, settings.pod_name) as lost:
                state["leading"] = True
                log.info("leading; watching %s", settings.namespace or "all namespaces")
                await _until_first_ends(
                    controller.run(),
                    kopf.operator(
                        registry=registry,
                        settings=kopf_settings(),
                        clusterwide=not settings.namespace,
                        namespaces=[settings.namespace] if settings.namespace else [],
                        stop_flag=stop,
                    ),
                    lost.wait(),
                )
    finally:
        await server.cleanup()


async def _until_first_ends(*coroutines: Any) -> None:
    """Run all; when one ends, cancel the others and raise its error, if it has one."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
