"""The engine process as the supervisor sees it: started in a session of its own, listened to, and ended for good."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from omni_stage import report
from omni_stage.report import FailureKind, Report
from omni_stage.supervisor import surroundings
from omni_stage.supervisor.classify import Ending

TAIL_BYTES = 16 * 1024
"""How much of the engine's standard error is kept for the verdict."""
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it, which PID 1 of a container is anyway."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class EngineProcess:
    """One engine process, from its start to the end of everything that it started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        reports, child_reports = os.pipe()
        errors, child_errors = os.pipe()
        try:
            # Its own session: a signal to the group reaches all that it spawns, and no terminal's reaches it.
            process = subprocess.Popen(
                list(command),
                env={**environment, report.FD_VARIABLE: str(child_reports)},
                stdin=subprocess.DEVNULL,
                stderr=child_errors,
                pass_fds=(child_reports,),
                start_new_session=True,
            )
        finally:
            os.close(child_reports)
            os.close(child_errors)
        process.returncode = 0  # reaped by `reap`, like every other child; keeps Popen from waiting itself
        self.pid = process.pid
        self.report_fd, self.error_fd = reports, errors
        self.closed: set[int] = set()
        """The pipes whose writing ends are all gone: they stay readable for ever, with nothing in them."""
        for fd in (reports, errors):
            os.set_blocking(fd, False)
        self.status: int | None = None
        """Once it has ended: as in `Ending`."""
        self.failure: FailureKind | None = None
        self.failure_text = ""
        self._tail = b""
        self._partial = b""

    def read_reports(self) -> list[Report]:
        """The messages that have come; a failure is also kept for the verdict."""
        lines = (self._partial + self._drain(self.report_fd)).split(b"\n")
        self._partial = lines.pop()
        reports = [r for r in map(report.decode, lines) if r is not None]
        for message in reports:
            if message.failure is not None:
                self.failure, self.failure_text = message.failure, message.detail
        return reports

    def copy_errors(self) -> None:
        """Pass the engine's standard error on, and keep its end."""
        data = self._drain(self.error_fd)
        if data:
            self._tail = (self._tail + data)[-TAIL_BYTES:]
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()

    def _drain(self, fd: int) -> bytes:
        chunks = []
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(fd, 65536):
                chunks.append(chunk)
            self.closed.add(fd)
        return b"".join(chunks)

    def ending(self) -> Ending:
        """What is known of its end."""
        return Ending(self.status or 0, self.failure, self.failure_text, self._tail.decode(errors="replace"))

    def ask_to_stop(self) -> None:
        """SIGTERM to the engine process alone: it decides how its own children drain."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def end_all(self, patience: float = 10.0) -> None:
        """Kill the group, then whatever left it, until nothing is below this supervisor. Gives up after `patience`."""
        deadline = time.monotonic() + patience
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        while time.monotonic() < deadline:
            self.reap()
            rest = surroundings.descendants(os.getpid(), surroundings.processes())
            if not rest:
                break
            for process in rest:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.02)
        self.copy_errors()
        self.read_reports()

    def reap(self) -> None:
        """Collect every child that has ended, orphans among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)
