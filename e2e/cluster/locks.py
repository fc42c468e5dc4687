"""Locks between processes: files that the kernel lets go of when their holder ends, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.progress import Progress


@contextmanager
def exclusive(path: Path, what: str, progress: Progress | None = None) -> Iterator[None]:
    """Hold the lock; while another process has it, wait, and say for `what`. Not for one process twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with (progress or Progress(quiet=True)).step(f"waiting for another process that {what}"):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
