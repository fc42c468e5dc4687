"""An OCI hook: refuses a container that was given two MPS control daemons, of which only the last mount would count.

Run by the container runtime as `python -I -S one_daemon.py DAEMON`, once for each daemon of the container, with the
container's state on standard input. The plugin refuses such a claim when it prepares it; this catches the consumers
that come later, for which the kubelet does not ask again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def daemons_of(config: Mapping[str, Any]) -> set[str]:
    """The daemons whose hook a container's OCI configuration names."""
    hooks = (config.get("hooks") or {}).get("createRuntime") or []
    return {hook["args"][-1] for hook in hooks if any(Path(each).name == Path(__file__).name for each in hook["args"])}


def main() -> None:
    state = json.load(sys.stdin)
    found = daemons_of(json.loads((Path(state["bundle"]) / "config.json").read_text()))
    if len(found) > 1:
        sys.exit(
            f"{len(found)} MPS control daemons in one container ({', '.join(sorted(found))}): put all requests that "
            "one container sees under one config entry"
        )


if __name__ == "__main__":
    main()
