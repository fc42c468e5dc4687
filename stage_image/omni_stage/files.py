"""Reading the pod's file: what every process of the container does first."""

from __future__ import annotations

from pathlib import Path

from omni_stage.checks import check
from omni_stage.contract import ConfigError, PodConfig


def read_config(path: str | Path) -> PodConfig:
    """The checked file; raises ConfigError."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(error)) from error
    config = PodConfig.from_json(text)
    check(config)
    return config
