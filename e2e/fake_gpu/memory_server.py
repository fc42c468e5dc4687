"""The node's ledger as a daemon: `python -m e2e.fake_gpu.memory_server FOLDER`, on a socket that containers are given.

It outlives the plugins, as memory on a card outlives a restart of NVIDIA's. In FOLDER (the plugins' own):

    memory/ledger.sock  mounted into containers, as the folder `/run/invented-gpu-memory`
    memory.jsonl        one line for each alloc, free, refusal and end of a client, with what is used after it
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from e2e.fake_gpu.memory import Client, Ledger, Refused

SOCKET_FOLDER = "memory"
SOCKET = "ledger.sock"
RECORD = "memory.jsonl"


class Server:
    """Answers clients one request at a time, so that what one is told is true when it is told."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._ledger = Ledger()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it closes; then all that it holds is free."""
        client: Client | None = None
        try:
            while line := await reader.readline():
                request = json.loads(line)
                if client is None:
                    client = _introduced(request, writer)
                    answer: dict[str, Any] = {"invented": True}
                else:
                    answer = self._answer(client, request)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError, KeyError) as error:
            print(f"a client is gone: {error!r}", file=sys.stderr, flush=True)
        finally:
            if client:
                self._end(client)
            writer.close()

    def _answer(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if request["op"] == "info":
                return self._ledger.info(client, request["gpu"])
            if request["op"] == "alloc":
                block = self._ledger.alloc(client, request["gpu"], int(request["bytes"]))
                self._note("alloc", client, request["gpu"], request["bytes"])
                return {"block": block}
            self._note("free", client, *self._ledger.free(client, request["block"]))
        except Refused as refusal:
            self._note("refused", client, request["gpu"], request["bytes"], reason=str(refusal))
            return {"error": "out of memory", "message": str(refusal)}
        except KeyError as error:
            return {"error": "invalid value", "message": f"no such block, GPU or operation: {error}"}
        return {}

    def _end(self, client: Client) -> None:
        for block in self._ledger.blocks(client):
            gpu, size = self._ledger.free(client, block)
            self._note("gone", client, gpu, size)

    def _note(self, event: str, client: Client, gpu: str, size: int, **more: Any) -> None:
        line = {
            "time": time.time(),
            "event": event,
            "client": client.name,
            "process": client.process,
            "gpu": gpu,
            "bytes": size,
            "used": self._ledger.used(gpu),
            "clientUsed": self._ledger.used(gpu, client.process),
            "invented": True,
            **more,
        }
        with self._record.open("a") as record:
            record.write(json.dumps(line) + "\n")


def _introduced(request: dict[str, Any], writer: asyncio.StreamWriter) -> Client:
    """The client behind a connection; the kernel says which process it is, by its id on the node."""
    peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, _, _ = struct.unpack("3i", peer)
    return Client(request["client"], process, request["gpus"], request["limits"])


async def run(folder: Path) -> None:
    """Serve for ever."""
    path = folder / SOCKET_FOLDER / SOCKET
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(Server(folder / RECORD).serve, path)
    path.chmod(0o666)  # containers may run as anyone
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
