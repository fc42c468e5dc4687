"""Where a container's ending is written down: for Kubernetes, and for the supervisor that comes after this one."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from omni_stage.contract import ExitCode
from omni_stage.supervisor.classify import Verdict

TERMINATION_LOG = Path("/dev/termination-log")
"""Kubernetes shows its content as the message of the terminated container."""


@dataclass(frozen=True)
class LastExit:
    """How the container before this one ended; the field names are those of /stage."""

    code: int
    cause: str
    reason: str
    at: float
    """Seconds since the epoch."""


def memory_file() -> Path:
    """In the pod's scratch volume, which outlives its containers."""
    return Path(tempfile.gettempdir()) / "omni-last-exit.json"


def write(verdict: Verdict, at: float, log: Path = TERMINATION_LOG) -> None:
    """Leave the verdict on stderr, in the termination message, and for the next container."""
    cause = ExitCode(verdict.code).name.lower()
    line = f"{cause}: {verdict.reason}"
    print(f"omni_stage: {line}", file=sys.stderr, flush=True)
    if log.exists() and os.access(log, os.W_OK):
        with contextlib.suppress(OSError):
            log.write_text(line[:4000])
    last = LastExit(int(verdict.code), cause, verdict.reason, at)
    with contextlib.suppress(OSError):
        memory_file().write_text(json.dumps(asdict(last)))


def read() -> LastExit | None:
    """How the container before this one ended, if there was one and it could say so."""
    try:
        return LastExit(**json.loads(memory_file().read_text()))
    except (OSError, ValueError, TypeError):
        return None
