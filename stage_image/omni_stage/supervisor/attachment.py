"""Whether this container can be, and stays, a client of its GPU's MPS control daemon.

A CUDA program that does not reach the daemon goes on without MPS, and so without the limit of its share (NVIDIA MPS
documentation). So under MPS no engine is started before the daemon is there, and none counts as ready without it.

The daemon listens on the UNIX socket `control` of the folder that CUDA_MPS_PIPE_DIRECTORY names. A socket that another
daemon made is not the one that a running engine is a client of: clients connect once, when CUDA starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omni_stage.contract import PodConfig, Role, Sharing

VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
CONTROL = "control"

Identity = tuple[int, int, int]
"""Device, inode and time of a socket: inodes are used again, also at once."""


@dataclass(frozen=True)
class Mps:
    """One look. `reason` says why it is not attached."""

    attached: bool = False
    pipe_directory: str | None = None
    reason: str = ""


class Attachment:
    """Looks at the daemon, and remembers which one the engine started with."""

    def __init__(self, config: PodConfig, environment: Mapping[str, str]) -> None:
        own = [stage for stage in config.stages if stage.process == config.process]
        on_gpu = config.role is Role.STAGE and any(stage.slots for stage in own)
        self.needed = config.sharing is Sharing.MPS and on_gpu
        self._folder = environment.get(VARIABLE)
        self._first: Identity | None = None

    def look(self) -> Mps:
        """How it is now."""
        if not self._folder:
            return Mps(reason=f"{VARIABLE} is not set: the GPU driver gave this container no MPS control daemon")
        try:
            found = identity(Path(self._folder))
        except OSError as error:
            return Mps(False, self._folder, f"the control daemon is not there: {error.strerror}: {error.filename}")
        if self._first not in (None, found):
            return Mps(False, self._folder, "the control daemon is another one than the engine started with")
        return Mps(True, self._folder)

    def engine_starts(self) -> None:
        """From now on only the daemon that is there counts."""
        try:
            self._first = identity(Path(self._folder)) if self._folder else None
        except OSError:
            self._first = None

    def obstacle(self, found: Mps) -> str:
        """What keeps the container from being ready; empty where nothing does."""
        return f"sharing is MPS, but {found.reason}" if self.needed and not found.attached else ""


def identity(folder: Path) -> Identity:
    """Of the daemon's socket. Raises OSError where there is none."""
    found = os.stat(folder / CONTROL)
    return found.st_dev, found.st_ino, found.st_mtime_ns
