"""What an engine process tells its supervisor: one JSON object a line, through a pipe that the supervisor opened.

Standard library only; both sides import it. Every message is written whole or not at all (they stay below the size
that a pipe takes atomically), and a supervisor that is gone is no reason for an engine to stop: the kernel ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

FD_VARIABLE = "OMNI_STAGE_REPORT_FD"
"""Number of the pipe's writing end, inherited by the engine process."""
MAX_LINE = 4096
"""Bytes that a pipe takes atomically."""


class Phase(StrEnum):
    """How far an engine process has come."""

    LOADING = "loading"
    WAITING = "waiting"
    """Its own start is over; it waits for the other pods of the replica."""
    READY = "ready"


class FailureKind(StrEnum):
    """What kind of failure an engine process saw itself; CRASH is told apart further by its text."""

    CONFIG = "config"
    PEER_LOST = "peer_lost"
    CRASH = "crash"


@dataclass(frozen=True)
class Report:
    """One message. `failure` comes last, if it comes."""

    phase: Phase | None = None
    detail: str = ""
    memory_bytes: int | None = None
    """What the engine holds of its GPUs, bytes; None where it computes on the CPU."""
    gauges: dict[str, float] = field(default_factory=dict)
    failure: FailureKind | None = None


def encode(report: Report) -> bytes:
    """One line that fits the pipe.

    Of a long detail the end is kept, where a traceback says what happened; of a problem with the file the beginning,
    which names the field.
    """
    data = {key: value for key, value in asdict(report).items() if value not in (None, "", {})}
    detail = report.detail
    while True:
        line = json.dumps({**data, "detail": detail}).encode() + b"\n"
        if len(line) <= MAX_LINE:
            return line
        half = len(detail) // 2
        detail = detail[:half] if report.failure is FailureKind.CONFIG else detail[len(detail) - half :]


def decode(line: bytes) -> Report | None:
    """The message of one line; None for a line that is none."""
    try:
        data: dict[str, Any] = json.loads(line)
        return Report(
            phase=Phase(data["phase"]) if "phase" in data else None,
            detail=str(data.get("detail", "")),
            memory_bytes=data.get("memory_bytes"),
            gauges={str(k): float(v) for k, v in data.get("gauges", {}).items()},
            failure=FailureKind(data["failure"]) if "failure" in data else None,
        )
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def send(report: Report) -> None:
    """Tell the supervisor; nothing happens in a process that has none."""
    number = os.environ.get(FD_VARIABLE)
    if number is not None:
        with contextlib.suppress(OSError):
            os.write(int(number), encode(report))
