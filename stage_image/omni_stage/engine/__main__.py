"""The engine process of a stage pod: `python -m omni_stage.engine FILE`, started by the supervisor.

It becomes sglang-omni's stage process itself, instead of starting one: the launcher's copy of the software stack would
cost as much memory again.
"""

from __future__ import annotations

import os
import sys

from omni_stage import tiny
from omni_stage.contract import Device
from omni_stage.engine import cpu
from omni_stage.engine.failures import reported
from omni_stage.files import read_config


def main() -> None:
    """Run the stages of this pod's process until they are told to stop."""
    with reported():
        config = read_config(sys.argv[1])
        if config.device is Device.CPU:
            cpu.prepare(os.environ)
        if config.pipeline == tiny.PIPELINE:
            os.environ.update(tiny.ENVIRONMENT)
        # Imported last: it imports SGLang, which reads the environment as it is by then.
        from omni_stage.engine.run import run

        run(config)


if __name__ == "__main__":
    main()
