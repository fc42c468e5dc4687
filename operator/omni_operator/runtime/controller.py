"""Workers that take keys from the queue and reconcile them. Knows nothing of kopf."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from omni_operator.kube.client import OMNI_MODELS, Client, KubeError
from omni_operator.rendering import Settings
from omni_operator.runtime.metrics import Metrics
from omni_operator.runtime.queue import KeyQueue
from omni_operator.runtime.reconcile import Memory, Pass, reconcile

log = logging.getLogger("omni_operator")

PROBLEM_RETRY_SECONDS = 15.0
"""After a write that the cluster refused, such as over a quota: the cause may go away without an event of ours."""

TELL_AFTER_FAILURES = 3
"""Failures of the API in a row after which the status speaks of them; before, they are no user's business."""


@dataclass(frozen=True)
class Key:
    """An OmniModel."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass
class Controller:
    """Everything that runs while this operator leads."""

    client: Client
    settings: Settings
    metrics: Metrics
    namespace: str = ""
    """Look after this namespace only; empty: all."""
    workers: int = 4
    resync_seconds: float = 300.0
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    queue: KeyQueue[Key] = field(default_factory=KeyQueue)
    memory: Memory = field(default_factory=Memory)

    async def run(self) -> None:
        """Work until cancelled."""
        self.metrics.watch_queue(lambda: len(self.queue), self.queue.oldest_age)
        self.metrics.watch_calls(lambda: self.client.calls)
        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(self._work())
            group.create_task(self._resync())

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                await self._one(key)
            finally:
                self.queue.done(key)

    async def _one(self, key: Key) -> None:
        started = time.monotonic()
        result = "error"
        try:
            tell = self.queue.failures(key) >= TELL_AFTER_FAILURES
            done = await reconcile(self.client, key.namespace, key.name, self.settings, self.clock, tell, self.memory)
            result = "ok"
            self.queue.forget(key)
            self._record(key, done)
            if done is not None and done.try_again:
                self.queue.add_after(key, PROBLEM_RETRY_SECONDS)
            if done is not None and done.look_again is not None:
                self.queue.add_after(key, done.look_again.total_seconds())
        except KubeError as error:
            self._failed(key, str(error), error.retry_after)
        except Exception as error:  # the top of the loop: one OmniModel's fault must not stop the others
            log.exception("%s: unexpected failure", key)
            self._failed(key, repr(error))
        finally:
            self.metrics.reconcile_seconds.labels(result).observe(time.monotonic() - started)

    def _failed(self, key: Key, message: str, at_least: float = 0.0) -> None:
        self.metrics.retries.inc()
        delay = self.queue.retry(key, at_least)
        log.warning("%s: %s; again in %.1f s", key, message, delay)

    def _record(self, key: Key, done: Pass | None) -> None:
        self.metrics.statuses.keep(key.namespace, key.name, done.status if done is not None else None)
        if done is None:
            self.memory.revisions.forget(key.namespace, key.name)
            self.memory.contests.pop((key.namespace, key.name), None)
            return
        step, repairs = done.step, done.repairs
        self.metrics.statuses.started(key.namespace, key.name, step.open_gates)
        written = {
            "apply": len(step.apply),
            "remove": len(step.removals),
            "gate": len(step.open_gates),
            "repair": repairs.count,
            "status": int(done.status_written),
        }
        for action, count in written.items():
            self.metrics.writes.labels(action).inc(count)
        self.metrics.pass_writes.observe(sum(written.values()))
        if not step.empty or repairs.count:
            log.info(
                "%s: %d applied, %d removed, %d gates opened, %d repaired",
                key, written["apply"], written["remove"], written["gate"], written["repair"],
            )  # fmt: skip

    async def _resync(self) -> None:
        """Look at everything again now and then, spread over time: an event may have been missed."""
        while True:
            await asyncio.sleep(self.resync_seconds * random.uniform(0.9, 1.1))
            try:
                models = await self.client.list_all(OMNI_MODELS, self.namespace or None)
            except Exception as error:  # whatever it is, it must not end the workers
                log.warning("resync left out: %r", error)
                continue
            for model in models:
                meta = model["metadata"]
                spread = random.uniform(0, self.resync_seconds / 10)
                self.queue.add_after(Key(meta["namespace"], meta["name"]), spread)
