"""The engine process of a stage pod: `python -m omni_stage.engine FILE`, started by the supervisor.

It becomes sglang-omni's stage process itself, instead of starting one: the launcher's copy of the software stack would
cost as much memory again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from omni_stage import tiny
from omni_stage.contract import ConfigError, Device, PodConfig
from omni_stage.engine import cpu
from omni_stage.engine.failures import reported
from omni_stage.files import read_config


def main() -> None:
    """Run the stages of this pod's process until they are told to stop."""
    with reported():
        config = read_config(sys.argv[1])
        own = [stage for stage in config.stages if stage.process == config.process]
        check_model(config)
        if config.device is Device.CPU:
            os.environ.update({**cpu.ENVIRONMENT, **os.environ})
        if config.device is Device.CPU or not any(stage.slots for stage in own):
            cpu.prepare(os.environ)
        if config.pipeline == tiny.PIPELINE:
            os.environ.update(tiny.ENVIRONMENT)
        # Imported last: it imports SGLang, which reads the environment as it is by then.
        from omni_stage.engine.run import run

        run(config)


def check_model(config: PodConfig) -> None:
    """A folder that is not there would otherwise be taken for a name on the hub."""
    if config.model_path.startswith("/") and not Path(config.model_path).exists():
        raise ConfigError(f"model_path: there is no {config.model_path} in this container")


if __name__ == "__main__":
    main()
