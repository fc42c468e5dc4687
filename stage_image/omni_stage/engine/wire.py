"""Bytes between pods: a server that hands out buffers by ticket, and a client that fetches them into place.

No torch in here, and no pickle: a request is a ticket of 16 random bytes, an answer is a length and the bytes. A ticket
is told to the receiver through the pipeline's control messages, so whoever has none gets nothing.

Bounds: one thread serves, MAX_CONNECTIONS at once; a client keeps at most MAX_PER_PEER connections to one peer and
reuses them; every wait ends after a time without progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

MAGIC = b"OMR1"
TICKET_BYTES = 16
REQUEST_BYTES = len(MAGIC) + TICKET_BYTES
ANSWER = struct.Struct("!cQ")
"""Found or gone, then the length."""
FOUND, GONE = b"+", b"-"
MAX_CONNECTIONS = 128
MAX_PER_PEER = 8
CHUNK_BYTES = 1 << 20
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 300.0
"""A connection without a request for so long is closed by the server."""


class RelayError(RuntimeError):
    """A transfer failed; the message says between whom and why."""


def new_ticket() -> bytes:
    """Unguessable."""
    return os.urandom(TICKET_BYTES)


def address_of(text: str) -> tuple[str, int]:
    """`host:port`, also with an IPv6 host in brackets."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


@dataclass
class Counters:
    """What a relay has done; read by the metrics."""

    sent_bytes: int = 0
    received_bytes: int = 0
    transfers: int = 0
    failures: int = 0
    held_bytes: int = 0


class Server:
    """Hands out buffers from a thread of its own, so that a busy event loop delays no transfer."""

    def __init__(self, port: int, find: Callable[[bytes], memoryview | None], counters: Counters) -> None:
        self._find, self._counters = find, counters
        self._listener = listen(port)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="relay-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; transfers under way are cut off."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop)
            self._thread.join(timeout=5)

    def _stop(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError), contextlib.closing(self._listener):
            self._loop.run_until_complete(self._accept())
        self._loop.close()

    async def _accept(self) -> None:
        room = asyncio.Semaphore(MAX_CONNECTIONS)
        try:
            while True:
                await room.acquire()
                connection, _ = await self._loop.sock_accept(self._listener)
                connection.setblocking(False)
                task = asyncio.create_task(self._serve(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                task.add_done_callback(lambda _: room.release())
        finally:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.closing(connection), contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = bytearray(REQUEST_BYTES)
            while True:
                await receive_into(self._loop, connection, memoryview(request), IDLE_SECONDS)
                if not request.startswith(MAGIC):
                    return
                await self._answer(connection, bytes(request[len(MAGIC) :]))

    async def _answer(self, connection: socket.socket, ticket: bytes) -> None:
        buffer = self._find(ticket)
        if buffer is None:
            await send(self._loop, connection, memoryview(ANSWER.pack(GONE, 0)), CONNECT_SECONDS)
            return
        await send(self._loop, connection, memoryview(ANSWER.pack(FOUND, buffer.nbytes)), CONNECT_SECONDS)
        await send(self._loop, connection, buffer, CONNECT_SECONDS)
        self._counters.sent_bytes += buffer.nbytes


@dataclass
class Peer:
    """Connections to one other relay."""

    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_PER_PEER))
    idle: list[socket.socket] = field(default_factory=list)


class Client:
    """Fetches buffers; belongs to one event loop."""

    def __init__(self) -> None:
        self._peers: dict[tuple[str, int], Peer] = defaultdict(Peer)

    async def fetch(self, address: tuple[str, int], ticket: bytes, into: memoryview, patience: float) -> None:
        """Fill `into` with the ticket's bytes. `patience`: seconds without progress before it fails (RelayError)."""
        peer = self._peers[address]
        async with peer.room:
            try:
                await self._fetch(peer, address, ticket, into, patience)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                reason = str(error) or f"no progress for {patience:.0f} s"
                raise RelayError(f"fetching {into.nbytes} bytes from {address[0]}:{address[1]}: {reason}") from error

    async def _fetch(
        self, peer: Peer, address: tuple[str, int], ticket: bytes, into: memoryview, patience: float
    ) -> None:
        loop = asyncio.get_running_loop()
        connection = self._reuse(peer) or await connect(loop, address)
        whole = False
        try:
            await send(loop, connection, memoryview(MAGIC + ticket), patience)
            head = bytearray(ANSWER.size)
            await receive_into(loop, connection, memoryview(head), patience)
            found, length = ANSWER.unpack(head)
            if found != FOUND:
                whole = True
                raise RelayError(f"{address[0]}:{address[1]} does not hold the data any more")
            if length != into.nbytes:
                raise RelayError(f"{address[0]}:{address[1]} has {length} bytes where {into.nbytes} are due")
            await receive_into(loop, connection, into, patience)
            whole = True
        finally:
            if whole:
                peer.idle.append(connection)
            else:
                connection.close()

    def _reuse(self, peer: Peer) -> socket.socket | None:
        """An idle connection whose other end is still there."""
        while peer.idle:
            connection = peer.idle.pop()
            try:
                connection.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return connection
            except OSError:
                pass
            connection.close()
        return None

    def close(self) -> None:
        """Drop every idle connection."""
        for peer in self._peers.values():
            for connection in peer.idle:
                connection.close()
            peer.idle.clear()


def listen(port: int) -> socket.socket:
    """A non-blocking listener on all addresses, IPv6 and IPv4 where the kernel has both."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            listener = socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=MAX_CONNECTIONS
            )
            listener.setblocking(False)
            return listener
    listener = socket.create_server(("0.0.0.0", port), backlog=MAX_CONNECTIONS)
    listener.setblocking(False)
    return listener


async def connect(loop: asyncio.AbstractEventLoop, address: tuple[str, int]) -> socket.socket:
    """The first of the name's addresses that answers."""
    problem: OSError = OSError("the name has no address")
    async with asyncio.timeout(CONNECT_SECONDS):
        found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, target in found:
            connection = socket.socket(family, kind, protocol)
            connection.setblocking(False)
            try:
                await loop.sock_connect(connection, target)
            except OSError as error:
                connection.close()
                problem = error
            except BaseException:
                connection.close()
                raise
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
    raise problem


def chunks(buffer: memoryview) -> Iterator[memoryview]:
    """The buffer in pieces that each get a time limit of their own."""
    if not buffer.nbytes:
        return
    flat = buffer.cast("B")
    for start in range(0, flat.nbytes, CHUNK_BYTES):
        yield flat[start : start + CHUNK_BYTES]


async def send(loop: asyncio.AbstractEventLoop, connection: socket.socket, buffer: memoryview, patience: float) -> None:
    """All of the buffer; TimeoutError where a piece does not get on for `patience` seconds."""
    for chunk in chunks(buffer):
        async with asyncio.timeout(patience):
            await loop.sock_sendall(connection, chunk)


async def receive_into(
    loop: asyncio.AbstractEventLoop, connection: socket.socket, buffer: memoryview, patience: float
) -> None:
    """Fill the buffer; IncompleteReadError where the other end closes before."""
    if not buffer.nbytes:
        return
    flat = buffer.cast("B")
    done = 0
    while done < flat.nbytes:
        async with asyncio.timeout(patience):
            count = await loop.sock_recv_into(connection, flat[done:])
        if count == 0:
            raise asyncio.IncompleteReadError(b"", flat.nbytes - done)
        done += count
