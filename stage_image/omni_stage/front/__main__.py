"""The engine process of a front pod: `python -m omni_stage.front FILE`, started by the supervisor."""

from __future__ import annotations

import os
import sys

from omni_stage.engine import cpu
from omni_stage.engine.failures import reported
from omni_stage.files import read_config


def main() -> None:
    """Serve until told to stop."""
    with reported():
        config = read_config(sys.argv[1])
        # The front never computes, whatever its stages compute on.
        cpu.prepare(os.environ)
        from omni_stage.front.server import serve

        serve(config)


if __name__ == "__main__":
    main()
