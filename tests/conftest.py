"""What tests of every kind share: reading the examples, and building a plan out of a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent


def example(name: str) -> dict[str, Any]:
    """An example's manifest, as the API server would hand it out."""
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    manifest["metadata"] |= {"namespace": "default", "uid": "u-1", "generation": 1}
    return manifest


@pytest.fixture
def colocated() -> dict[str, Any]:
    return example("qwen3-omni-h100-colocated")


@pytest.fixture
def overbooked() -> dict[str, Any]:
    return example("qwen3-omni-h100-overbooked")


@pytest.fixture
def tiny() -> dict[str, Any]:
    return example("tiny-omni")
