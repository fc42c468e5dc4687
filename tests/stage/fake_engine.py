"""An engine process for the supervisor's tests: does as its arguments say, one after the other.

ready            report ready
detail=TEXT      report waiting with this detail
gauge=NAME:VALUE report a gauge
fail=KIND:TEXT   report a failure
stderr=TEXT      write to standard error
children=FOLDER  leave two children behind, one of them in a session of its own; write their pids to the folder
deaf             ignore SIGTERM
quiet            close the report pipe and standard error
sleep            for ever
beat=SECONDS     say something every so many seconds, for ever
exit=STATUS
kill=SIGNAL      end oneself by this signal's number
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from omni_stage import report
from omni_stage.report import FailureKind, Phase, Report


def leave_children(folder: str) -> None:
    """One in this group, and one that is an orphan outside of it."""
    here = subprocess.Popen(["sleep", "1000"])
    script = (
        "import subprocess as s; p = s.Popen(['sleep', '1000'], start_new_session=True, stdout=s.DEVNULL); print(p.pid)"
    )
    orphan = subprocess.check_output([sys.executable, "-c", script], text=True).strip()
    Path(folder, "pids").write_text(f"{here.pid} {orphan}")


def fail(value: str) -> None:
    """Report a failure."""
    kind, _, text = value.partition(":")
    report.send(Report(failure=FailureKind(kind), detail=text))


def gauge(value: str) -> None:
    """Report a gauge, and memory."""
    name, _, number = value.partition(":")
    report.send(Report(gauges={name: float(number)}, memory_bytes=12345))


def beat(value: str) -> None:
    """As a heartbeat does."""
    while True:
        report.send(Report())
        time.sleep(float(value))


def close_pipes(_: str) -> None:
    """Say nothing any more."""
    os.close(int(os.environ[report.FD_VARIABLE]))
    os.close(2)


ACTIONS: dict[str, Callable[[str], object]] = {
    "ready": lambda _: report.send(Report(phase=Phase.READY)),
    "detail": lambda value: report.send(Report(phase=Phase.WAITING, detail=value)),
    "gauge": gauge,
    "fail": fail,
    "stderr": lambda value: print(value, file=sys.stderr, flush=True),
    "children": leave_children,
    "deaf": lambda _: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "quiet": close_pipes,
    "beat": beat,
    "sleep": lambda _: time.sleep(1000),
    "exit": lambda value: sys.exit(int(value)),
    "kill": lambda value: os.kill(os.getpid(), int(value)),
}

for argument in sys.argv[1:]:
    name, _, rest = argument.partition("=")
    ACTIONS[name](rest)
