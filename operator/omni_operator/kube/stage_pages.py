"""What stage pods say of themselves, asked of them directly and not through the API server: it costs that no call.

Best effort: a page that does not come in time is left out, and never an error. A pod is asked at most once a minute, so
that neither passes nor pods have much to do with it; what it said is remembered for as long, and nothing depends on it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import aiohttp

from omni_operator.planning.measured import worth_asking
from omni_operator.planning.observed import Observed, ObservedPod, StagePage
from omni_stage.contract import SUPERVISOR_PORT

PAGE_SECONDS = 1.0
"""A supervisor answers at once or not at all; all of a pass are asked side by side."""
EVERY_SECONDS = 60.0
UNTIL_READY_SECONDS = 10.0
AT_ONCE = 32
MOST_BYTES = 64 * 1024
"""Of a page: a pod is not trusted to end."""
MOST_MEMORY = 1 << 52
FORGOTTEN_SECONDS = 900.0
MAX_WORDS = 300


@dataclass(frozen=True)
class _Asked:
    at: float
    ready: bool
    page: StagePage | None


class StagePages:
    """Asks, and remembers for a while. One for the whole operator."""

    def __init__(self, port: int = SUPERVISOR_PORT, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._clock = clock
        self._asked: dict[str, _Asked] = {}
        """By the pod's uid."""

    async def added(self, observed: Observed, now: datetime) -> Observed:
        """The same, with the page of each stage pod that has one."""
        pods = [pod for pod in observed.pods.values() if worth_asking(pod, now)]
        due = [pod for pod in pods if self._due(pod)]
        if due:
            await self._ask(due)
        told = {pod.name: replace(pod, page=seen.page) for pod in pods if (seen := self._asked.get(pod.uid))}
        return replace(observed, pods={**observed.pods, **told})

    def _due(self, pod: ObservedPod) -> bool:
        seen = self._asked.get(pod.uid)
        if seen is None or seen.ready != pod.ready:
            return True
        known = seen.page is not None and seen.page.memory_bytes is not None
        return self._clock() - seen.at >= (EVERY_SECONDS if pod.ready and known else UNTIL_READY_SECONDS)

    async def _ask(self, pods: Iterable[ObservedPod]) -> None:
        started = self._clock()
        self._asked = {uid: seen for uid, seen in self._asked.items() if started - seen.at < FORGOTTEN_SECONDS}
        limit = aiohttp.ClientTimeout(total=PAGE_SECONDS)
        async with aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(limit=AT_ONCE)) as session:
            pages = await asyncio.gather(*(self._page(session, pod) for pod in pods))
        for pod, page in zip(pods, pages, strict=True):
            self._asked[pod.uid] = _Asked(started, pod.ready, page)

    async def _page(self, session: aiohttp.ClientSession, pod: ObservedPod) -> StagePage | None:
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        try:
            # Not followed: a pod must not be able to send the operator elsewhere.
            async with session.get(f"http://{host}:{self._port}/stage", allow_redirects=False) as answer:
                return page_of(json.loads(await _body(answer))) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
            return None


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """All of it, or what is no JSON where it is too long."""
    text = b""
    async for chunk in answer.content.iter_any():
        text += chunk
        if len(text) > MOST_BYTES:
            return b""
    return text


def page_of(answer: Any) -> StagePage | None:
    """A page out of a supervisor's answer; None where it is none."""
    if not isinstance(answer, dict) or not isinstance(answer.get("mps"), dict):
        return None
    memory, mps = answer.get("memory_bytes"), answer["mps"]
    known = type(memory) is int and 0 < memory < MOST_MEMORY
    kind = "torch" if answer.get("memory_kind") == "torch" else "resident"
    reason = "" if mps.get("attached") is True else str(mps.get("reason") or "it does not say why")
    words = " ".join(reason.split())[:MAX_WORDS]
    return StagePage(memory if known else None, kind, words, answer.get("silent") is True)
