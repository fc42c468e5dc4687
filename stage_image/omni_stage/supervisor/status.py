"""What the supervisor knows, as one value that its HTTP threads read while its main loop writes."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from omni_stage.contract import StageState
from omni_stage.supervisor.attachment import Mps

STALE_SECONDS = 30.0
"""An engine that was ready and says nothing for so long is not ready."""


@dataclass(frozen=True)
class Snapshot:
    """The supervisor's knowledge at one moment. Times are the clock's seconds since the epoch."""

    state: StageState = StageState.STARTING
    since: float = 0.0
    detail: str = ""
    engine_pid: int | None = None
    engine_started: float | None = None
    ready_after: float | None = None
    """Seconds from the engine's start to its first ready."""
    heard: float | None = None
    """When the engine last said anything."""
    engine_memory_bytes: int | None = None
    """What the engine itself says that it holds on its GPUs."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    mps: Mps = field(default_factory=Mps)
    obstacle: str = ""
    """What keeps it from being ready, whatever the engine says."""

    def is_ready(self, now: float) -> bool:
        """Ready, heard of lately, and nothing against it."""
        return self.state is StageState.READY and not self.obstacle and not self.is_silent(now)

    def is_silent(self, now: float) -> bool:
        """It was ready, and is not heard of any more."""
        return self.state is StageState.READY and (self.heard is None or now - self.heard >= STALE_SECONDS)


class Status:
    """Holds the current snapshot; one writer, many readers."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.instance = uuid.uuid4().hex
        """Differs after every restart, so that a watcher notices one that fell between two looks."""
        self._lock = threading.Lock()
        self._snapshot = Snapshot(since=clock())

    def get(self) -> Snapshot:
        """The current snapshot."""
        with self._lock:
            return self._snapshot

    def ready(self) -> bool:
        """Whether /readyz says so now."""
        return self.get().is_ready(self.clock())

    def update(self, **changes: object) -> None:
        """Replace fields; `since` follows the state."""
        with self._lock:
            changed = replace(self._snapshot, **changes)  # type: ignore[arg-type]
            if changed.state is not self._snapshot.state:
                changed = replace(changed, since=self.clock())
            self._snapshot = changed
