"""The guardian keeps daemons running, follows its folder, and takes everything along when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import init
from e2e.cluster.control_plane import repeatedly_ended
from e2e.cluster.record import Process


def until(there: Callable[[], Any], seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := there()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return value


class Guardian:
    """A running `init.py` and its folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        (state / "daemons").mkdir()
        read_end, self.pipe = os.pipe()
        command = [sys.executable, "-I", "-S", init.__file__, str(state), "--guard", str(read_end)]
        self.process = subprocess.Popen(command, pass_fds=[read_end])
        os.close(read_end)
        until((state / "status.json").exists)

    def put(self, name: str, script: str, after: list[str] | None = None) -> None:
        spec = {"argv": ["sh", "-c", script], "log": str(self.state / f"{name}.log"), "after": after or []}
        (self.state / "daemons" / f"{name}.json").write_text(json.dumps(spec))
        self.process.send_signal(signal.SIGHUP)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "status.json").read_text()).get(name, {})
        return found

    def pid(self, name: str) -> int:
        pid: int = until(lambda: self.status(name).get("pid"))
        return pid

    def close(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None  # type: ignore[assignment]
        self.process.wait(10)


@pytest.fixture
def guardian(tmp_path: Path) -> Iterator[Guardian]:
    running = Guardian(tmp_path)
    yield running
    running.close()


def gone(pid: int) -> bool:
    return Process.of(pid) is None


def test_a_daemon_that_ends_is_started_again(guardian: Guardian) -> None:
    guardian.put("brief", "exit 3")
    until(lambda: guardian.status("brief").get("starts", 0) >= 2)
    assert guardian.status("brief")["ended"] == "exit code 3"
    assert repeatedly_ended(guardian.state / "status.json", {}) == "brief"


def test_a_daemon_follows_its_file(guardian: Guardian) -> None:
    guardian.put("one", "sleep 1000")
    first = guardian.pid("one")
    guardian.put("one", "sleep 1001")
    until(lambda: gone(first))
    second = until(lambda: guardian.pid("one") != first and guardian.pid("one"))
    (guardian.state / "daemons" / "one.json").unlink()
    guardian.process.send_signal(signal.SIGHUP)
    until(lambda: gone(second))


def test_a_daemon_waits_for_what_it_needs(guardian: Guardian) -> None:
    guardian.put("later", "sleep 1000", after=["unix:needed.sock"])
    time.sleep(0.3)
    assert guardian.status("later")["starts"] == 0
    serve = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('needed.sock'); s.listen(); input()"
    with subprocess.Popen([sys.executable, "-c", serve], cwd=guardian.state, stdin=subprocess.PIPE) as server:
        assert guardian.pid("later")
        server.communicate(b"\n")


def test_what_cannot_be_started_says_so_in_its_log(guardian: Guardian) -> None:
    spec = {"argv": ["/no/such/program"], "log": str(guardian.state / "wrong.log")}
    (guardian.state / "daemons" / "wrong.json").write_text(json.dumps(spec))
    guardian.process.send_signal(signal.SIGHUP)
    until(lambda: guardian.status("wrong").get("ended") == "exit code 127")
    assert "/no/such/program" in (guardian.state / "wrong.log").read_text()


def test_closing_the_guard_ends_everything(guardian: Guardian) -> None:
    guardian.put("one", "sleep 1000")
    pid = guardian.pid("one")
    guardian.close()
    assert gone(pid)


def test_killing_the_guardian_ends_its_daemons(guardian: Guardian) -> None:
    guardian.put("one", "sleep 1000")
    pid = guardian.pid("one")
    guardian.process.kill()
    until(lambda: gone(pid))


def test_a_process_is_not_mistaken_for_a_later_one_with_its_id() -> None:
    this = Process.of(os.getpid())
    assert this is not None
    assert this.alive
    assert not Process(this.pid, this.started + 1).alive
