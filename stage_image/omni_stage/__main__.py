"""PID 1 of a stage container: `python -m omni_stage [--config FILE]`.

Reads the pod's file, starts its engine process, answers for it on the supervisor's port, and exits with the contract's
code for the cause. A file that cannot be used ends it at once with code 78.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time

from omni_stage.contract import CONFIG_PATH, ConfigError, ExitCode, PodConfig, Role
from omni_stage.files import read_config
from omni_stage.supervisor import endings
from omni_stage.supervisor.answers import own_stages
from omni_stage.supervisor.classify import Verdict
from omni_stage.supervisor.server import serve
from omni_stage.supervisor.status import Status
from omni_stage.supervisor.supervise import Supervisor, engine_command


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m omni_stage", description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=CONFIG_PATH, help="the pod's file (%(default)s)")
    parser.add_argument("--engine", help="for tests: the engine process's command line, instead of the real one")
    arguments = parser.parse_args()
    try:
        config = read_config(arguments.config)
    except ConfigError as error:
        endings.write(Verdict(ExitCode.BAD_CONFIG, f"{arguments.config}: {error}"), time.time())
        return ExitCode.BAD_CONFIG
    status = Status()
    try:
        serve(config, status, supervisor_port(config))
    except OSError as error:
        reason = f"port {supervisor_port(config)} cannot be listened on: {error}"
        endings.write(Verdict(ExitCode.BAD_CONFIG, reason), time.time())
        return ExitCode.BAD_CONFIG
    command = engine_command(config, sys.executable, arguments.config)
    if arguments.engine:
        command = shlex.split(arguments.engine)
    return Supervisor(config, status, command, dict(os.environ)).run()


def supervisor_port(config: PodConfig) -> int:
    """Where this pod's supervisor answers."""
    return config.front.supervisor_port if config.role is Role.FRONT else own_stages(config)[0].supervisor_port


if __name__ == "__main__":
    sys.exit(main())
