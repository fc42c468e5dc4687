"""Memory of invented GPUs, as a process in a container asks for it. Nothing computes and nothing is stored: the node's
ledger counts, and refuses what a real card or its MPS control daemon would refuse.

The standard library only, so that the file runs in any image with Python (copied, or mounted from a ConfigMap):

    with Memory.connect() as memory:        # this process as a CUDA client of its GPUs
        info = memory.info()                # of its first GPU; .total .free .limit .used, in bytes
        block = memory.alloc(6 * 2**30)     # raises OutOfMemory, and the ledger keeps that it did
        memory.free(block)

    python client.py < COMMANDS             # `alloc BYTES [GPU]`, `free BLOCK`, `info [GPU]`, one a line; JSON answers

What a process holds is freed when it closes the connection or ends, however it ends. As CUDA does, `total` is the whole
card under MPS too, and `free` is capped for this process by the lesser of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT and the
control daemon's limit. Without MPS `free` is what the card has left. A CUDA context is not counted.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

MARKERS = Path("/run/invented-gpus")
SOCKET = Path("/run/invented-gpu-memory/ledger.sock")
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
LIMIT = re.compile(r"(\d+)=(\d+)([KMG]?)B?", re.IGNORECASE)


class OutOfMemory(Exception):
    """The card, or this process's limit, has less left than was asked for."""


class NoDaemon(Exception):
    """The MPS control daemon is lost: no client can connect (CUDA_ERROR_MPS_CONNECTION_FAILED)."""


@dataclass(frozen=True)
class Info:
    """Bytes of one GPU as this process sees them. `limit` is None without MPS; `used` is this process's own."""

    total: int
    free: int
    limit: int | None
    used: int


class Memory:
    """A connection to the ledger, which is one client process of its GPUs. GPUs are ordinals: 0 is the first."""

    def __init__(self, connection: socket.socket, uuids: list[str]) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        self.uuids = uuids

    @classmethod
    def connect(
        cls, name: str = "", path: Path = SOCKET, markers: Path = MARKERS, environment: Mapping[str, str] = os.environ
    ) -> Memory:
        """Connect as `name` (the pod's by default). Raises NoDaemon under MPS without its daemon."""
        gpus = {marker["uuid"]: marker["memory"] for marker in _markers(markers)}
        limits = _limits(list(gpus), environment)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        memory = cls(connection, list(gpus))
        memory._ask(op="hello", client=name or socket.gethostname(), gpus=gpus, limits=limits)
        return memory

    def info(self, gpu: int = 0) -> Info:
        """How much there is."""
        answer = self._ask(op="info", gpu=self.uuids[gpu])
        return Info(answer["total"], answer["free"], answer["limit"], answer["used"])

    def alloc(self, size: int, gpu: int = 0) -> int:
        """Take `size` bytes; returns the block to free. Raises OutOfMemory."""
        return int(self._ask(op="alloc", gpu=self.uuids[gpu], bytes=size)["block"])

    def free(self, block: int) -> None:
        """Give one block back."""
        self._ask(op="free", block=block)

    def close(self) -> None:
        """Give everything back."""
        self._lines.close()
        self._connection.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        line = self._lines.readline()
        if not line:
            raise ConnectionError("the ledger of the invented GPUs ended the connection")
        answer: dict[str, Any] = json.loads(line)
        if answer.get("error") == "out of memory":
            raise OutOfMemory(answer["message"])
        if "error" in answer:
            raise ValueError(answer["message"])
        return answer


def _markers(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(found, key=lambda marker: int(marker["minor"]))


def _limits(uuids: list[str], environment: Mapping[str, str]) -> dict[str, int]:
    """{uuid: bytes} that this process may take, where it is a client of an MPS control daemon."""
    folder = environment.get("CUDA_MPS_PIPE_DIRECTORY")
    if not folder:
        return {}  # CUDA looks at the variable for the limit under MPS alone
    if not (Path(folder) / "control").exists():
        raise NoDaemon(f"MPS client failed to connect to the MPS control daemon or the MPS server: no {folder}/control")
    told = json.loads((Path(folder) / "invented-daemon.json").read_text())["limits"]
    limits = {uuid: _bytes(*LIMIT.fullmatch(f"0={text}").groups()[1:]) for uuid, text in told.items()}  # type: ignore[union-attr]
    for ordinal, number, unit in LIMIT.findall(environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")):
        if int(ordinal) < len(uuids):
            uuid = uuids[int(ordinal)]
            limits[uuid] = min(_bytes(number, unit), limits.get(uuid, sys.maxsize))
    return {uuid: limit for uuid, limit in limits.items() if uuid in uuids}


def _bytes(number: str, unit: str) -> int:
    return int(number) * UNITS[unit.upper()]


def main() -> None:
    with Memory.connect() as memory:
        for line in sys.stdin:
            command, *numbers = line.split()
            try:
                if command == "info":
                    answer: Any = vars(memory.info(*map(int, numbers)))
                elif command == "alloc":
                    answer = {"block": memory.alloc(*map(int, numbers))}
                else:
                    memory.free(*map(int, numbers))
                    answer = {}
            except OutOfMemory as problem:
                answer = {"error": "out of memory", "message": str(problem)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
