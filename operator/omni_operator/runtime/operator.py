"""The operator's process: kopf watches, events become keys, the controller does the rest.

kopf handlers do nothing but put a key into the queue: they set no finalizers, annotate nothing and never fail.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, repeat
from typing import Any

import kopf

from omni_operator.api import names
from omni_operator.kube.client import OMNI_MODELS, Client, KubeError, connect
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


def handlers(add: Callable[[Key], object]) -> kopf.OperatorRegistry:
    """Handlers that turn every event into its OmniModel's key."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**arguments: Any) -> kopf.ConnectionInfo | None:
        """The pod's service account, or KUBECONFIG: kopf's own readers, which need no second Kubernetes client."""
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def model_changed(namespace: str | None, name: str | None, **_: Any) -> None:
        add(Key(str(namespace), str(name)))

    async def child_changed(namespace: str | None, body: kopf.Body, **_: Any) -> None:
        for owner in owners(body):
            add(Key(str(namespace), owner))

    for group, version, plural in WATCHED_CHILDREN:
        kopf.on.event(group, version, plural, id="child", registry=registry)(child_changed)
    return registry


def owners(body: Mapping[str, Any]) -> set[str]:
    """Names of the OmniModels that a child has to do with: by its label, and by its owner, should the label lie."""
    meta = body["metadata"]
    found = {reference["name"] for reference in meta.get("ownerReferences") or [] if reference["kind"] == names.KIND}
    label = (meta.get("labels") or {}).get(names.MODEL_LABEL)
    return found | {label} if label else found


class Backoffs(Iterable[float]):
    """Seconds between kopf's tries of one call, without end: its own list ends after 54 s, and the operator with it."""

    def __iter__(self) -> Iterator[float]:
        return chain((0.5, 1, 2, 4, 8), repeat(15.0))


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
    settings.networking.error_backoffs = Backoffs()
    for _, _, plural in WATCHED_CHILDREN:
        settings.watching.label_selectors[plural] = names.MODEL_LABEL
    return settings


async def watch(namespace: str, identity: str, add: Callable[[Key], object]) -> None:
    """Watch until cancelled. Raises what ended kopf, which never ends by itself otherwise.

    kopf has a thread and an event loop of its own: when it stops, it waits 5 s for every task of its loop that it did
    not make, and then cancels it.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    stop = threading.Event()

    def add_from_thread(key: Key) -> None:
        with suppress(RuntimeError):  # events may come in while the process ends, after its loop was closed
            loop.call_soon_threadsafe(add, key)

    def body() -> None:
        error: BaseException = RuntimeError("kopf stopped watching")
        try:
            asyncio.run(
                kopf.operator(
                    registry=handlers(add_from_thread),
                    settings=kopf_settings(),
                    # Not given, it would ask for the name of the user, who has none in a container.
                    identity=identity,  # type: ignore[arg-type]  # a NewType that kopf does not export
                    clusterwide=not namespace,
                    namespaces=[namespace] if namespace else [],
                    stop_flag=stop,
                )
            )
        except Exception as failure:
            error = failure
        if not stop.is_set():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set_exception, error)

    threading.Thread(target=body, name="kopf", daemon=True).start()
    try:
        await ended
    finally:
        stop.set()


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
