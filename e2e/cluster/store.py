"""containerd's image stores, which outlive nodes, so that an image is imported once and not at every start.

A store serves one containerd at a time. A node takes the first that is free and holds it by a lock which its first
process inherits; the kernel lets go of it with that process.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import STORES

MOST_STORES = 64


@dataclass(frozen=True)
class Lease:
    """A store that is ours while `lock` (or an inherited copy of it) is open."""

    name: str
    folder: Path
    lock: IO[str]


@contextmanager
def lease() -> Iterator[Lease]:
    """Take the first free store, made if there is none. The lock ends here unless a child process inherited it."""
    for number in range(MOST_STORES):
        name = f"store-{number}"
        folder = STORES / name
        folder.mkdir(parents=True, exist_ok=True)
        with (STORES / f"{name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield Lease(name, folder, lock)
            return
    raise ClusterError(f"all {MOST_STORES} image stores are in use", "`python -m e2e.cluster down` clusters not needed")
