"""A tensor-parallel stage: sglang-omni starts a process for each rank, the pod's engine process watches them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .pods import SOURCE, alive

pytestmark = pytest.mark.stage

Ranks = tuple["subprocess.Popen[str]", dict[int, int]]


@pytest.fixture
def ranks(stage_python: str) -> Iterator[Ranks]:
    """The watching process, and the pid of each rank; all ready."""
    script = Path(__file__).with_name("two_ranks.py")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMNI_STAGE_REPORT_FD": "1"}
    process = subprocess.Popen(
        [stage_python, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    pids: dict[int, int] = {}
    for line in process.stdout:
        if match := re.match(r"rank (\d) of 2 in process (\d+)", line):
            pids[int(match[1])] = int(match[2])
        if line.startswith("{") and json.loads(line).get("phase") == "ready":
            break
    yield process, pids
    process.kill()
    process.wait(10)
    process.stdout.close()


def test_ranks_start_and_stop_with_their_stage(ranks: Ranks) -> None:
    process, pids = ranks
    assert sorted(pids) == [0, 1]
    assert len({process.pid, *pids.values()}) == 3
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not any(alive(pid) for pid in pids.values())


def test_a_rank_that_ends_ends_the_stage(ranks: Ranks) -> None:
    process, pids = ranks
    os.kill(pids[1], signal.SIGKILL)
    assert process.stdout is not None
    failures = [json.loads(line) for line in process.stdout if line.startswith("{") and "failure" in line]
    assert process.wait(60) == 1
    assert "a rank of thinker ended" in failures[-1]["detail"]
