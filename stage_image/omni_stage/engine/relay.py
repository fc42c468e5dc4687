"""Tensors between pods over TCP, as one of sglang-omni's relays.

sglang-omni takes its cross-node relay (by the name `mooncake`) for every stage in `remote_stage_names`; the one it has
stops after two requests, since its sender is never told that the receiver is done. This one keeps a sent tensor in host
memory until the receiver's acknowledgement, or its failure, has come through the pipeline's control messages.
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from sglang_omni.relay.base import RELAY_REGISTRY, Relay, RelayOperation

from omni_stage.engine.wire import Client, Counters, RelayError, Server, address_of, new_ticket

NAME = "mooncake"
"""Under which sglang-omni looks for its cross-node relay."""
MAX_HELD_BYTES = 8 << 30
"""Unacknowledged data that one stage holds; a sender beyond it waits."""
COUNTERS = Counters()
"""Of all relays in this process."""


class Put(RelayOperation):  # type: ignore[misc]
    """A tensor that waits for its receiver."""

    def __init__(self, relay: TcpRelay, ticket: bytes, size: int) -> None:
        self._relay, self.ticket, self.size = relay, ticket, size
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def metadata(self) -> dict[str, object]:
        """What the receiver needs."""
        host, port = self._relay.host, self._relay.port
        return {
            "engine_id": self._relay.engine_id,
            "transfer_info": {"size": self.size, "host": host, "port": port, "ticket": self.ticket.hex()},
        }

    def mark_receiver_done(self) -> None:
        """The receiver has it: let go of the memory."""
        self._relay.release(self)
        if not self._done.done():
            self._done.set_result(None)

    def mark_receiver_failed(self, exc: BaseException) -> None:
        """The receiver will not fetch it any more: let go all the same. sglang-omni reports the failure itself."""
        COUNTERS.failures += 1
        self.mark_receiver_done()

    async def wait_for_completion(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109  # sglang-omni's signature
        """Until the receiver is done."""
        async with asyncio.timeout(timeout):
            await asyncio.shield(self._done)


class Get(RelayOperation):  # type: ignore[misc]
    """A tensor to be fetched into its place."""

    def __init__(self, relay: TcpRelay, metadata: dict[str, Any], target: torch.Tensor) -> None:
        self._relay, self._metadata, self._target = relay, metadata, target

    @property
    def metadata(self) -> dict[str, Any]:
        """As it came."""
        return self._metadata

    async def wait_for_completion(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109  # sglang-omni's signature
        """Fetch it; fails after `timeout` seconds without progress."""
        info = self._metadata["transfer_info"]
        flat = self._target.view(torch.uint8).reshape(-1)[: info["size"]]
        host_copy = flat if flat.device.type == "cpu" else torch.empty_like(flat, device="cpu")
        ticket = bytes.fromhex(info["ticket"])
        try:
            await self._relay.client.fetch(
                (info["host"], info["port"]), ticket, memoryview(host_copy.numpy()), patience=timeout
            )
        except RelayError:
            COUNTERS.failures += 1
            raise
        if host_copy is not flat:
            flat.copy_(host_copy)
        COUNTERS.transfers += 1
        COUNTERS.received_bytes += info["size"]


class TcpRelay(Relay):  # type: ignore[misc]
    """One per stage and direction of locality; sglang-omni makes it on first use, in the stage's event loop."""

    def __init__(self, engine_id: str, hostname: str, device: str = "cpu") -> None:
        self.engine_id = engine_id
        self.host, self.port = address_of(hostname)
        self.device = "cpu"
        """On purpose, whatever `device` says: what travels by TCP has to be in host memory."""
        self.client = Client()
        self._held: dict[bytes, torch.Tensor] = {}
        self._held_bytes = 0
        self._server: Server | None = None
        self._room = asyncio.Event()

    def find(self, ticket: bytes) -> memoryview | None:
        """The bytes of a ticket, for the server's thread. A look into a dictionary is atomic."""
        tensor = self._held.get(ticket)
        return None if tensor is None else memoryview(tensor.numpy())

    async def put_async(
        self,
        tensor: torch.Tensor,
        request_id: str | None = None,
        dst_rank: int | None = None,
        receiver_id: str | None = None,
    ) -> Put:
        """Hold the tensor for its receiver; waits while too much is held already."""
        if self._server is None:
            self._server = Server(self.port, self.find, COUNTERS)
        data = tensor.detach().contiguous().view(torch.uint8).reshape(-1).cpu()
        while self._held_bytes and self._held_bytes + data.numel() > MAX_HELD_BYTES:
            self._room.clear()
            await self._room.wait()
        operation = Put(self, new_ticket(), data.numel())
        self._held[operation.ticket] = data
        self._count(data.numel())
        return operation

    async def get_async(
        self, metadata: dict[str, Any], dest_tensor: torch.Tensor, request_id: str | None = None
    ) -> Get:
        """Fetching starts with `wait_for_completion`."""
        return Get(self, metadata, dest_tensor)

    def release(self, operation: Put) -> None:
        """Forget what an operation holds; harmless when it is forgotten already."""
        if self._held.pop(operation.ticket, None) is not None:
            self._count(-operation.size)
            self._room.set()

    def _count(self, change: int) -> None:
        self._held_bytes += change
        COUNTERS.held_bytes += change

    def cleanup(self, request_id: str) -> None:
        """Nothing: a stage calls this for a request that it has just read, whose own output may still be held."""

    def close(self) -> None:
        """Stop serving and forget everything."""
        self.client.close()
        if self._server is not None:
            self._server.close()
        self._count(-self._held_bytes)
        self._held.clear()


def install() -> None:
    """Make it sglang-omni's relay between nodes."""
    RELAY_REGISTRY[NAME] = TcpRelay
