"""Leadership by a Lease, so that two operators never act at once. The election is the Kubernetes client's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from kubernetes.aio.client import V1Lease, V1ObjectMeta
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from omni_operator.api import names
from omni_operator.kube.client import Client, Kind, KubeError

log = logging.getLogger("omni_operator")

LEASES = Kind("coordination.k8s.io/v1", "leases")
DURATION_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15, 10, 2
"""client-go's usual timing: a leader that cannot renew for 10 s gives up before another may take over after 15 s."""


class _Lock(LeaseLock):  # type: ignore[misc]
    """A lost connection is one failed try, not the end of the election."""

    async def get(self, name: str, namespace: str) -> Any:
        try:
            return await super().get(name, namespace)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return False, ApiException(status=0, reason=repr(error))

    async def create(self, name: str, namespace: str, election_record: Any) -> Any:
        """The client's own passes `pretty=True` to a parameter that takes text (37.0.2), and so never succeeds."""
        body = V1Lease(metadata=V1ObjectMeta(name=name), spec=self.update_lease(election_record))
        return await self._tried(self.api_instance.create_namespaced_lease(namespace, body))

    async def update(self, name: str, namespace: str, updated_record: Any) -> Any:
        return await self._tried(super().update(name, namespace, updated_record))

    async def _tried(self, call: Any) -> Any:
        try:
            return await call
        except (ApiException, aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("lease: %r", error)
            return False


@asynccontextmanager
async def lead(client: Client, namespace: str, identity: str) -> AsyncIterator[asyncio.Event]:
    """Wait until this process leads; the yielded event is set when it no longer does. An empty namespace leads at
    once."""
    lost = asyncio.Event()
    if not namespace:
        yield lost
        return
    leading = asyncio.Event()

    async def started() -> None:
        leading.set()
        await asyncio.Event().wait()

    async def stopped() -> None:
        lost.set()

    lock = _Lock(names.MANAGER, namespace, identity, client.api)
    config = Config(lock, DURATION_SECONDS, RENEW_SECONDS, RETRY_SECONDS, started, stopped)
    election = asyncio.create_task(LeaderElection(config).run())

    def ended(_: object) -> None:
        lost.set()
        leading.set()

    election.add_done_callback(ended)
    try:
        await leading.wait()
        if lost.is_set():
            raise KubeError("lease", 0, "Lost", f"the election ended: {election.exception()!r}")
        yield lost
    finally:
        election.cancel()
        await asyncio.gather(election, return_exceptions=True)
        await _release(client, namespace, identity)


async def _release(client: Client, namespace: str, identity: str) -> None:
    """Let the next one lead at once instead of after DURATION_SECONDS."""
    patch = [
        {"op": "test", "path": "/spec/holderIdentity", "value": identity},
        {"op": "remove", "path": "/spec/holderIdentity"},
    ]
    try:
        await client.json_patch(LEASES, namespace, names.MANAGER, patch)
    except KubeError as error:
        log.info("lease not released: %s", error)
