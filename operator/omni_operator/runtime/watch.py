"""kopf watches OmniModels and their children, and turns every event into a key.

Its handlers do nothing but put a key into the queue: they set no finalizers, annotate nothing and never fail.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, repeat
from typing import Any

import kopf

from omni_operator.api import names
from omni_operator.runtime.controller import Key

log = logging.getLogger("omni_operator")

LASTING_SECONDS = 60.0
"""Watching that ends sooner than this ended quickly."""
MOST_QUICK_ENDS = 7
FIRST_DELAY_SECONDS = 0.25

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
    """Seconds between kopf's tries of one call, without end: its own list ends after 54 s, and the operator with it.

    Short ones: nothing is seen to change until the API server is found again, and few operators ask.
    """

    def __iter__(self) -> Iterator[float]:
        return chain((0.5, 1, 2), repeat(4.0))


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
    """Watch until cancelled. Raises RuntimeError when watching fails again and again.

    kopf has a thread and an event loop of its own: when it stops, it waits 5 s for every task of its loop that it did
    not make, and then cancels it.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    kopf_loop = asyncio.new_event_loop()
    # Not a threading.Event: kopf would wait for it in a thread of the loop's, which the loop waits for when it closes.
    stop = asyncio.Event()

    def add_from_thread(key: Key) -> None:
        with suppress(RuntimeError):  # events may come in while the process ends, after its loop was closed
            loop.call_soon_threadsafe(add, key)

    def operator() -> Coroutine[Any, Any, None]:
        return kopf.operator(
            registry=handlers(add_from_thread),
            settings=kopf_settings(),
            # Not given, it would ask for the name of the user, who has none in a container.
            identity=identity,  # type: ignore[arg-type]  # a NewType that kopf does not export
            clusterwide=not namespace,
            namespaces=[namespace] if namespace else [],
            stop_flag=stop,
        )

    def body() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: kopf_loop) as runner:
                runner.run(keep_going(operator, stop))
        except Exception as failure:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set_exception, failure)

    threading.Thread(target=body, name="kopf", daemon=True).start()
    try:
        await ended
    finally:
        with suppress(RuntimeError):  # its loop is closed where it ended by itself
            kopf_loop.call_soon_threadsafe(stop.set)


async def keep_going(operator: Callable[[], Coroutine[Any, Any, None]], stop: asyncio.Event) -> None:
    """Start kopf again when an answer that it does not expect has ended it; it lists everything anew then.

    Raises RuntimeError after some quick ends in a row: a new process may fare better, and kubelet shows its restarts.
    """
    quick_ends = 0
    while not stop.is_set():
        started = time.monotonic()
        error: Exception | None = None
        try:
            await operator()
        except Exception as failure:  # whatever it was, the answer is the same
            error = failure
        if stop.is_set():
            return
        quick_ends = quick_ends + 1 if time.monotonic() - started < LASTING_SECONDS else 0
        if quick_ends >= MOST_QUICK_ENDS:
            raise RuntimeError(f"kopf stopped watching: {error!r}") from error
        delay = FIRST_DELAY_SECONDS * 2.0**quick_ends
        log.warning("watching ended: %r; again in %.1f s", error, delay)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), delay)
