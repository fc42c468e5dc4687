"""An API-only control plane comes up without a node, answers, and does not outlive whoever asked for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.cluster import binaries, control_plane
from e2e.cluster.layout import REPOSITORY
from e2e.cluster.record import Process

pytestmark = pytest.mark.api


def kubectl(kubeconfig: Path, *arguments: str) -> str:
    command = [binaries("kubernetes")["kubectl"], f"--kubeconfig={kubeconfig}", *arguments]
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


def test_it_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "e2e.cluster", "api-up", f"--directory={tmp_path}"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout
        assert asking.stdout.readline().strip() == str(tmp_path / "kubeconfig")
        pids = [each["pid"] for each in json.loads((tmp_path / "status.json").read_text()).values() if each["pid"]]
        assert len(pids) == 3
        asking.kill()
    deadline = time.monotonic() + 20
    while any(Process.of(pid) for pid in pids):
        assert time.monotonic() < deadline, "the daemons outlived their guardian"
        time.sleep(0.1)
