"""Who waits for whom: the starting order of each GPU, with how far it has come. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from omni_operator.cli.live_model import LiveModel, LiveStage
from omni_operator.planning.layout import Layout
from omni_operator.planning.targets import replica_target


@dataclass(frozen=True)
class Waiting:
    """Stages that start one after another on the same GPUs."""

    replica: int
    slots: tuple[int, ...]
    """Empty for stages on the CPU, which start side by side."""
    queue: tuple[LiveStage, ...]
    """In starting order."""

    @property
    def now(self) -> LiveStage | None:
        """The first that is not ready: what all after it wait for."""
        return next((row for row in self.queue if not row.ready), None)


def waiting(model: LiveModel) -> tuple[Waiting, ...]:
    """Every queue that is not through, replica by replica."""
    layout = model.layout
    if layout is None:
        return ()
    found: list[Waiting] = []
    for replica in model.replicas:
        by_slots: dict[tuple[LiveStage, ...], list[int]] = {}
        for slot in layout.slots:
            queue = _queue(model, layout, replica, slot)
            if any(not row.ready for row in queue):
                by_slots.setdefault(queue, []).append(slot)
        found += [Waiting(replica, tuple(slots), queue) for queue, slots in by_slots.items()]
    return tuple(found)


def started_for(row: LiveStage, now: datetime) -> int | None:
    """Seconds since its container was started."""
    return None if row.started is None else max(0, int((now - row.started).total_seconds()))


def startup_limit(model: LiveModel, name: str) -> int | None:
    """Seconds that a stage may take to start."""
    layout = model.layout
    stages = layout.stages if layout else ()
    return next((stage.startup_timeout for stage in stages if stage.name == name), None)


def span_of_time(seconds: int) -> str:
    """As kubectl says it: `45s`, `12m`, `3h20m`, `2d4h`."""
    units: Sequence[tuple[int, str]] = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
    for i, (size, letter) in enumerate(units):
        if seconds >= size:
            big, rest = divmod(seconds, size)
            small = rest // units[i + 1][0] if i < 2 else 0
            return f"{big}{letter}" + (f"{small}{units[i + 1][1]}" if small and big < 10 else "")
    return "0s"


def _queue(model: LiveModel, layout: Layout, replica: int, slot: int) -> tuple[LiveStage, ...]:
    rows = {row.name: row for row in model.stages if row.replica == replica}
    pods = replica_target(model.name, layout, replica).pods
    named = [stage.name for pod in pods if slot in pod.slots for stage in pod.stages if slot in stage.slots]
    return tuple(rows[name] for name in named if name in rows)
