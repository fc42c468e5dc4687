"""Where the tests marked `stage` find their environment, and the replica that they share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .pods import SOURCE, tiny_config
from .replica import Replica

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def stage_python() -> str:
    """The interpreter of the stage environment: OMNI_STAGE_PYTHON, or the one that `make` leaves in the cache."""
    python = os.environ.get("OMNI_STAGE_PYTHON", str(ROOT / ".cache" / "venvs" / "stage" / "bin" / "python"))
    if not Path(python).exists():
        pytest.skip(f"no stage environment at {python}: see stage_image/README.md")
    return python


@pytest.fixture(scope="session")
def tiny_model(stage_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pipeline's model, as the image build makes it."""
    folder = tmp_path_factory.mktemp("models") / "tiny-omni"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run(
        [stage_python, "-m", "omni_stage.tiny.make_model", str(folder)], check=True, env=environment, timeout=300
    )
    return folder


@pytest.fixture(scope="module")
def replica(stage_python: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """A whole tiny replica, ready."""
    replica = Replica(stage_python, tiny_config(str(tiny_model)), tmp_path_factory.mktemp("replica"))
    try:
        replica.start()
        yield replica
    finally:
        replica.end()
