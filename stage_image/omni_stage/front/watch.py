"""Following the readiness of a replica's stage pods. No torch.

The coordinator hears of no stage's death: its messages wait in a queue for whoever comes back. So each pod's supervisor
is asked every second, and a pod counts as lost as soon as its supervisor says that it is not ready, refuses the
connection, is not heard of three times in a row, or is another instance than before.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum

from omni_stage.contract import StageConfig

POLL_SECONDS = 1.0
LOOK_TIMEOUT_SECONDS = 2.0
MISSES = 3


@dataclass(frozen=True)
class Look:
    """What one look at a pod's supervisor showed."""

    ready: bool = False
    answered: bool = False
    """Its supervisor answered, or its machine said that nobody is there: what it says counts at once."""
    instance: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Pod:
    """One stage pod as last seen."""

    host: str
    port: int
    stages: tuple[str, ...]
    ready: bool = False
    instance: str = ""
    misses: int = 0
    detail: str = "not seen yet"


class Event(StrEnum):
    """What a look changed."""

    CAME = "came"
    LOST = "lost"
    RESTARTED = "restarted"
    """Lost and back between two looks."""


def step(pod: Pod, look: Look) -> tuple[Pod, Event | None]:
    """The pod after a look, and what that means. Pure."""
    seen = replace(pod, detail=look.detail, misses=0)
    if look.ready:
        came = replace(seen, ready=True, instance=look.instance)
        if not pod.ready:
            return came, Event.CAME
        return came, None if look.instance == pod.instance else Event.RESTARTED
    if not pod.ready:
        return seen, None
    misses = MISSES if look.answered else pod.misses + 1
    if misses >= MISSES:
        return replace(seen, ready=False), Event.LOST
    return replace(pod, misses=misses), None


def pods_of(stages: Iterable[StageConfig]) -> list[Pod]:
    """One for each supervisor."""
    by_address: dict[tuple[str, int], list[str]] = {}
    for stage in stages:
        by_address.setdefault((stage.host, stage.supervisor_port), []).append(stage.name)
    return [Pod(host, port, tuple(names)) for (host, port), names in by_address.items()]


def look_at(pod: Pod) -> Look:
    """Ask the pod's supervisor; blocks up to LOOK_TIMEOUT_SECONDS."""
    host = f"[{pod.host}]" if ":" in pod.host else pod.host
    try:
        with urllib.request.urlopen(f"http://{host}:{pod.port}/readyz", timeout=LOOK_TIMEOUT_SECONDS) as answer:
            return look_of(answer.read())
    except urllib.error.HTTPError as error:
        return look_of(error.read())
    except (OSError, ValueError) as error:
        refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
        return Look(answered=refused, detail=f"unreachable: {getattr(error, 'reason', error)}")


def look_of(body: bytes) -> Look:
    """From the body of /readyz."""
    try:
        data = json.loads(body)
        detail = f"{data['state']}: {data['detail']}" if data["detail"] else data["state"]
        return Look(bool(data["ready"]), True, str(data["instance"]), detail)
    except (ValueError, KeyError, TypeError):
        return Look(detail="its answer is none of a supervisor")


class Watch:
    """Looks at every pod once a second, and tells of changes."""

    def __init__(self, pods: Iterable[Pod], on_event: Callable[[Pod, Event], None]) -> None:
        self.pods = list(pods)
        self.on_event = on_event
        self.all_ready = asyncio.Event()
        self._threads = ThreadPoolExecutor(max_workers=len(self.pods), thread_name_prefix="watch")

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            looks = await asyncio.gather(*(loop.run_in_executor(self._threads, look_at, p) for p in self.pods))
            for index, look in enumerate(looks):
                self.pods[index], event = step(self.pods[index], look)
                if event is not None:
                    self.on_event(self.pods[index], event)
            if all(pod.ready for pod in self.pods):
                self.all_ready.set()
            else:
                self.all_ready.clear()
            await asyncio.sleep(POLL_SECONDS)

    def missing(self) -> str:
        """Which stages are not ready, and why; empty when all are."""
        return "; ".join(f"{', '.join(pod.stages)}: {pod.detail}" for pod in self.pods if not pod.ready)
