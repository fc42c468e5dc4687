"""Progress that a person can watch: what is being done, and for how long, on a terminal or in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOG_EVERY = 20.0  # seconds between lines where the output is not a terminal


class Step:
    """One thing being done. `show` replaces its note."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.note = ""
        self.started = time.monotonic()

    def show(self, note: str) -> None:
        self.note = note

    @property
    def elapsed(self) -> str:
        seconds = time.monotonic() - self.started
        return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s" if seconds >= 60 else f"{seconds:.1f}s"


class Progress:
    """Prints steps to the error stream, so that a command's own output stays clean."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()

    def say(self, line: str) -> None:
        if not self._quiet:
            print(line, file=sys.stderr, flush=True)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        step = Step(title)
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(step, ended), daemon=True)
        if not self._quiet:
            watcher.start()
        try:
            yield step
        finally:
            ended.set()
            if watcher.is_alive():
                watcher.join()
        if self._terminal and not self._quiet:
            print("\r\033[K", end="", file=sys.stderr)
        self.say(f"{title}: {step.elapsed}")

    def _watch(self, step: Step, ended: threading.Event) -> None:
        while not ended.wait(0.5 if self._terminal else LOG_EVERY):
            line = f"{step.title}: {step.elapsed}" + (f", {step.note}" if step.note else "")
            if self._terminal:
                print(f"\r\033[K{line[:150]}", end="", file=sys.stderr, flush=True)
            else:
                self.say(line)
