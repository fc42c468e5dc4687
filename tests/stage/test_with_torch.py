"""Runs the tests that import torch in the stage environment, which this environment has not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .pods import SOURCE

pytestmark = pytest.mark.stage

ROOT = Path(__file__).parents[2]


def test_the_relay(stage_python: str) -> None:
    command = [stage_python, "-m", "pytest", "tests/stage/test_relay.py", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout.decode()[-3000:]
    assert b"skipped" not in done.stdout
