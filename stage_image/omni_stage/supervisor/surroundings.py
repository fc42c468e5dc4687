"""What a container can see of its machine: its GPUs, and the memory of its processes. Reads only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INVENTED_GPUS = Path("/run/invented-gpus")
"""Where the test driver that invents GPUs leaves a file `<minor>-<uuid>.json` for each GPU that it gave the container;
the n-th by minor number is CUDA's ordinal n."""
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    resident_bytes: int


def device_uuids(environment: Mapping[str, str], invented: Path = INVENTED_GPUS) -> list[str]:
    """UUIDs of the GPUs given to this container, in the order of their ordinals, as far as the driver tells them:
    NVIDIA's DRA driver says `void`, and none."""
    if invented.is_dir():
        markers = [path.stem.partition("-") for path in invented.glob("*.json")]
        return [uuid for minor, _, uuid in sorted(markers, key=_minor) if minor.isdigit()]
    named = [part.strip() for part in environment.get("NVIDIA_VISIBLE_DEVICES", "").split(",")]
    return [uuid for uuid in dict.fromkeys(named) if uuid not in ("", "void", "none", "all")]


def _minor(marker: tuple[str, str, str]) -> int:
    return int(marker[0]) if marker[0].isdigit() else 0


def processes(proc: Path = Path("/proc")) -> list[Process]:
    """Every process of this PID namespace. One that goes while we look is left out."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue
        # The name in parentheses may hold spaces and parentheses: what follows the last one is regular.
        fields = text[text.rindex(")") + 2 :].split()
        found.append(Process(int(entry.name), int(fields[1]), int(fields[3]), int(fields[21]) * PAGE_SIZE))
    return found


def descendants(root: int, table: list[Process]) -> list[Process]:
    """The processes below `root`, without it."""
    below: set[int] = {root}
    found: list[Process] = []
    while True:
        new = [p for p in table if p.parent in below and p.pid not in below]
        if not new:
            return found
        found += new
        below |= {p.pid for p in new}


def resident_bytes(root: int) -> int:
    """Resident memory of everything below `root`, bytes. Pages that processes share count for each."""
    return sum(p.resident_bytes for p in descendants(root, processes()))


def own_resident_bytes() -> int:
    """Resident memory of this process, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_SIZE
