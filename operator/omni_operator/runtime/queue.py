"""A queue of keys: each waits at most once, is worked on by one worker at a time, and comes back after a failure with
a delay that grows.

Promises: an `add` during work on the same key makes it run once more afterwards; a thousand `add`s before that are one;
`add_after` never delays a key that is due earlier; a key that was just worked on rests for a moment, in which the
events of that work's own writes come in, so that they are one.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF_SECONDS = 0.25
MAX_BACKOFF_SECONDS = 120.0
REST_SECONDS = 0.05
"""From the end of a key's work to its next: events of what was just written come in within some milliseconds."""


class KeyQueue(Generic[K]):
    """Deduplicating, with a delay per key."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, jitter: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._rests: dict[K, float] = {}
        self._added = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys that are due now."""
        now = self._clock()
        return sum(due <= now for due in self._due.values())

    def oldest_age(self) -> float:
        """Seconds for which the longest waiting key has been due; 0 where none is."""
        now = self._clock()
        return max((now - due for due in self._due.values() if due <= now), default=0.0)

    def add(self, key: K) -> None:
        """The key is due now."""
        self.add_after(key, 0.0)

    def add_after(self, key: K, seconds: float) -> None:
        """The key is due in `seconds`, or earlier if it already is; not before its rest has ended."""
        due = max(self._clock() + seconds, self._rests.get(key, 0.0))
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._added += 1
        heapq.heappush(self._heap, (due, self._added, key))
        self._changed.set()

    def forget(self, key: K) -> None:
        """The key's last work succeeded: its next failure starts with the shortest delay again."""
        self._failures.pop(key, None)

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """The key's work failed: due again after a delay that doubles each time, and not before `at_least` seconds.
        Returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 16))
        delay = max(delay * (0.75 + 0.5 * self._jitter()), at_least * (1.0 + 0.25 * self._jitter()))
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """How often the key's work has failed since it last succeeded."""
        return self._failures.get(key, 0)

    async def take(self) -> K:
        """The next due key that nobody works on. Call `done` afterwards."""
        while True:
            self._changed.clear()
            now = self._clock()
            key, later = self._next(now)
            if key is not None:
                del self._due[key]
                self._working.add(key)
                return key
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), None if later is None else max(0.0, later - now))

    def done(self, key: K) -> None:
        """The work on the key has ended."""
        now = self._clock()
        self._working.discard(key)
        self._rests = {each: end for each, end in self._rests.items() if end > now}
        self._rests[key] = now + REST_SECONDS
        if self._due.get(key, math.inf) < now + REST_SECONDS:
            del self._due[key]
            self.add(key)
        self._changed.set()

    def _next(self, now: float) -> tuple[K | None, float | None]:
        """A key that may be worked on; or else the time at which to look again, None: when something changes."""
        held: list[tuple[float, int, K]] = []
        found: K | None = None
        later: float | None = None
        while self._heap and found is None and later is None:
            due, _, key = entry = self._heap[0]
            if self._due.get(key) == due and due > now:
                later = due
                break
            heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue
            if key in self._working:
                held.append(entry)
            else:
                found = key
        for entry in held:
            heapq.heappush(self._heap, entry)
        return found, later
