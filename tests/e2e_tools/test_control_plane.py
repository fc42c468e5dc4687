"""An API-only control plane comes up without a node, answers, and does not outlive whoever asked for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster import binaries, control_plane
from e2e.cluster.layout import REPOSITORY
from e2e.cluster.record import Process

pytestmark = pytest.mark.api


def kubectl(kubeconfig: Path, *arguments: str) -> str:
    command = [str(binaries("kubernetes")["kubectl"]), f"--kubeconfig={kubeconfig}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_two_run_side_by_side_and_know_nothing_of_each_other(tmp_path: Path) -> None:
    with control_plane(tmp_path / "a") as first, control_plane(tmp_path / "b") as second:
        kubectl(first, "create", "namespace", "only-here")
        assert "only-here" in kubectl(first, "get", "namespaces")
        assert "only-here" not in kubectl(second, "get", "namespaces")


def test_garbage_is_collected(tmp_path: Path) -> None:
    with control_plane(tmp_path) as kubeconfig:
        kubectl(kubeconfig, "create", "namespace", "x")
        kubectl(kubeconfig, "delete", "namespace", "x", "--timeout=30s")


def pids(directory: Path) -> list[int]:
    """The daemons that run by now."""
    status = directory / "status.json"
    return [each["pid"] for each in json.loads(status.read_text()).values() if each["pid"]] if status.exists() else []


def until(there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_it_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "e2e.cluster", "api-up", f"--directory={tmp_path}"]
    asking = subprocess.Popen(command, cwd=REPOSITORY)
    try:
        until(lambda: len(pids(tmp_path)) == 3, "etcd, the API server and the controllers do not run")
        started = pids(tmp_path)
    finally:
        asking.kill()
        asking.wait()
    until(lambda: not any(Process.of(pid) for pid in started), "the daemons outlived their guardian")
