"""Run a folder of daemons and keep them running: a node's first process, or the guardian of a control plane.

Run as a script, without the rest of the package, since it may be the first process of a namespace:

    python -I -S init.py STATE [--guard FD]

It promises that
- every `STATE/daemons/*.json` runs, is started again when it ends, and is stopped when its file goes (SIGHUP: look);
- whatever ends this process ends every daemon (each asks the kernel for a SIGKILL at its parent's death);
- with `--guard`, it ends when the other end of that pipe closes, so a killed test leaves nothing behind;
- orphans are reaped, and `STATE/status.json` says what runs, how often it was started and how it last ended.

A daemon's file: `{"argv": [...], "env": {...}, "cwd": "/", "log": "path", "after": [...]}`. `after` lists what must
answer before it starts: `unix:PATH`, `tcp:HOST:PORT`, `http:HOST:PORT/PATH` or `https:…`. STATE/setup.json, a list of
commands, runs before anything.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import http.client
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

WATCHED = {signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGINT}
PR_SET_PDEATHSIG = 1
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds before a daemon that ended is started again
BUSY_TICK, IDLE_TICK = 0.03, 0.5  # seconds between looks: while something waits to start, and otherwise

LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class Daemon:
    """One program, and what has become of it."""

    name: str
    spec: dict[str, Any]
    pid: int | None = None
    starts: int = 0
    ended: str = ""
    due: float = 0.0

    def start(self) -> None:
        self.pid = spawn(self.spec)
        self.starts += 1

    def has_ended(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self.ended = f"exit code {code}" if code >= 0 else f"signal {-code}"
        self.pid = None
        self.due = time.monotonic() + min(FIRST_PAUSE * 2 ** min(self.starts, 8), LONGEST_PAUSE)

    def kill(self) -> None:
        if self.pid is not None:
            for kill in (os.killpg, os.kill):  # the group, and the process itself should it not lead its group yet
                with contextlib.suppress(ProcessLookupError):
                    kill(self.pid, signal.SIGKILL)

    def report(self) -> dict[str, Any]:
        return {"pid": self.pid, "starts": self.starts, "ended": self.ended}


def spawn(spec: dict[str, Any]) -> int:
    """Fork and run one daemon in a process group of its own, which dies with this process."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        os.chdir(spec.get("cwd", "/"))
        os.execvpe(spec["argv"][0], spec["argv"], {**os.environ, **spec.get("env", {})})
    except BaseException as error:
        os.write(2, f"cannot start {spec.get('argv')}: {error}\n".encode())
    os._exit(127)


def answers(condition: str) -> bool:
    """Whether what a daemon waits for is there."""
    kind, _, where = condition.partition(":")
    try:
        if kind == "unix":
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1)
                client.connect(where)
            return True
        if kind == "tcp":
            host, _, port = where.rpartition(":")
            socket.create_connection((host, int(port)), timeout=1).close()
            return True
        return _web_answers(kind, where)
    except (OSError, http.client.HTTPException):
        return False


def _web_answers(kind: str, where: str) -> bool:
    """A readiness probe: only the status counts, so the certificate is not verified."""
    address, _, path = where.partition("/")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    secure = kind == "https"
    client = (
        http.client.HTTPSConnection(address, timeout=2, context=context)
        if secure
        else http.client.HTTPConnection(address, timeout=2)
    )
    try:
        client.request("GET", f"/{path}")
        return client.getresponse().status == 200
    finally:
        client.close()


class Init:
    """The loop: read the folder, start what is due, reap what ended, until told to stop."""

    def __init__(self, state: Path, guard: int | None) -> None:
        self.state = state
        self.guard = guard
        self.daemons: dict[str, Daemon] = {}
        self.leaving: list[Daemon] = []
        self.stopping = False
        self.reported = ""

    def run(self) -> None:
        os.chdir(self.state)  # relative sockets in `after` are meant from here
        for opened in os.listdir("/proc/self/fd"):  # a lock or a pipe that was handed over stays with this process
            if int(opened) > 2:
                with contextlib.suppress(OSError):
                    os.set_inheritable(int(opened), False)
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        for each in WATCHED:  # the first process of a namespace never gets a signal that it has no handler for
            signal.signal(each, _nothing)
        self._set_up()
        self._read()
        while not self.stopping:
            self._start_what_is_due()
            self._report()
            self._wait()
        self._end()

    def _end(self) -> None:
        """Returns when every daemon is gone, so that whoever waits for this process may remove their files."""
        for daemon in (running := [each for each in self.daemons.values() if each.pid is not None]):
            daemon.kill()
        for daemon in running:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(daemon.pid or -1, 0)

    def _set_up(self) -> None:
        path = self.state / "setup.json"
        for command in json.loads(path.read_text()) if path.exists() else []:
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")

    def _read(self) -> None:
        specs = {path.stem: json.loads(path.read_text()) for path in sorted((self.state / "daemons").glob("*.json"))}
        for name, daemon in list(self.daemons.items()):
            if specs.get(name) != daemon.spec:
                daemon.kill()
                self.leaving.append(self.daemons.pop(name))
        for name, spec in specs.items():
            self.daemons.setdefault(name, Daemon(name, spec))

    def _waiting(self) -> list[Daemon]:
        return [each for each in self.daemons.values() if each.pid is None]

    def _start_what_is_due(self) -> None:
        still_leaving = {each.name for each in self.leaving if each.pid is not None}
        for daemon in self._waiting():
            due = time.monotonic() >= daemon.due and daemon.name not in still_leaving
            if due and all(answers(each) for each in daemon.spec.get("after", [])):
                daemon.start()

    def _wait(self) -> None:
        caught = signal.sigtimedwait(WATCHED, BUSY_TICK if self._waiting() else IDLE_TICK)
        number = caught.si_signo if caught else None
        if number == signal.SIGHUP:
            self._read()
        self._reap()
        if number in (signal.SIGTERM, signal.SIGINT) or self._guard_closed():
            self.stopping = True

    def _guard_closed(self) -> bool:
        return self.guard is not None and bool(select.select([self.guard], [], [], 0)[0])

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            for daemon in [*self.daemons.values(), *self.leaving]:
                if daemon.pid == pid:
                    daemon.has_ended(status)
        self.leaving = [each for each in self.leaving if each.pid is not None]

    def _report(self) -> None:
        report = json.dumps({name: daemon.report() for name, daemon in self.daemons.items()}, indent=1)
        if report != self.reported:
            unfinished = self.state / "status.json.unfinished"
            unfinished.write_text(report)
            unfinished.replace(self.state / "status.json")
            self.reported = report


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Signals are taken by sigtimedwait; the handler only keeps the kernel from discarding them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state", type=Path)
    parser.add_argument("--guard", type=int, help="a pipe's end: when the other closes, everything ends")
    arguments = parser.parse_args()
    Init(arguments.state.resolve(), arguments.guard).run()


if __name__ == "__main__":
    main()
