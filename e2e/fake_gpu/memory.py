"""PURE: the ledger of memory that containers take of invented GPUs, and what its record says afterwards.

It is a count, not memory: a process says what it takes, and is refused where a real card would be full or where its MPS
limit ends. A process may hold several connections; the limit is for all of them together, as MPS limits each process.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Client:
    """One connection: whose it is, its GPUs' memory, and its MPS limits where it has some; both by uuid, in bytes."""

    name: str
    process: int
    gpus: Mapping[str, int]
    limits: Mapping[str, int]


class Refused(Exception):
    """Out of memory, with figures."""


class Ledger:
    """Who holds how much of which GPU. Blocks are numbers."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[Client, str, int]] = {}
        self._numbers = itertools.count(1)

    def used(self, gpu: str, process: int | None = None) -> int:
        """Bytes of a GPU that are taken, by all or by one process."""
        return sum(
            size for client, uuid, size in self._blocks.values() if uuid == gpu and process in (None, client.process)
        )

    def info(self, client: Client, gpu: str) -> dict[str, Any]:
        """What the client sees of a GPU."""
        total, own, limit = client.gpus[gpu], self.used(gpu, client.process), client.limits.get(gpu)
        left = total - self.used(gpu)
        free = left if limit is None else max(0, min(left, limit - own))
        return {"total": total, "free": free, "limit": limit, "used": own}

    def alloc(self, client: Client, gpu: str, size: int) -> int:
        """A block of `size` bytes. Raises Refused."""
        seen = self.info(client, gpu)
        if size > seen["free"]:
            limit = seen["limit"]
            within = "the card" if limit is None else f"its MPS limit of {limit / GIB:.2f} GiB"
            raise Refused(
                f"{client.name} asks for {size / GIB:.2f} GiB of {gpu}: {seen['free'] / GIB:.2f} GiB is free within "
                f"{within}, {seen['used'] / GIB:.2f} GiB is its own already"
            )
        number = next(self._numbers)
        self._blocks[number] = (client, gpu, size)
        return number

    def free(self, client: Client, block: int) -> tuple[str, int]:
        """Give a block back; returns its GPU and size. Raises KeyError where the client has no such block."""
        holder, gpu, size = self._blocks[block]
        if holder is not client:
            raise KeyError(block)
        del self._blocks[block]
        return gpu, size

    def blocks(self, client: Client) -> list[int]:
        return [number for number, (holder, _, _) in self._blocks.items() if holder is client]


@dataclass
class Usage:
    """What a record says about one GPU: bytes at most and now, the most of each client by name, and refusals."""

    peak: int = 0
    now: int = 0
    clients: Counter[str] = field(default_factory=Counter)
    refusals: list[dict[str, Any]] = field(default_factory=list)


def usage(events: Iterable[Mapping[str, Any]], since: float = 0.0) -> dict[str, Usage]:
    """{uuid: usage} from the events at and after `since`; what was held before counts as held."""
    found: dict[str, Usage] = defaultdict(Usage)
    for event in events:
        if "gpu" not in event:
            continue
        of = found[event["gpu"]]
        of.now = event["used"]
        if event["time"] < since:
            of.peak = of.now
            continue
        of.peak = max(of.peak, of.now)
        of.clients[event["client"]] = max(of.clients[event["client"]], event["clientUsed"])
        if event["event"] == "refused":
            of.refusals.append(dict(event))
    return dict(found)
