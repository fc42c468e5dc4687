"""`python -m omni_operator.runtime`: the operator."""

from __future__ import annotations

import asyncio
import logging
import sys

from omni_operator.kube.client import KubeError
from omni_operator.runtime.operator import run
from omni_operator.runtime.settings import SettingsError, read_settings


def main() -> int:
    """Exit 0 when told to stop, 1 on a lost Lease or an unreachable cluster, 2 on a wrong setting."""
    try:
        settings = read_settings()
    except SettingsError as error:
        print(f"omni-operator: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("kopf").setLevel(logging.ERROR)
    try:
        asyncio.run(run(settings))
    except (KubeError, OSError, RuntimeError) as error:
        print(f"omni-operator: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
