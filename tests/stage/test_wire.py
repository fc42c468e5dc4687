"""Bytes between pods: whole or a clear error, and never more connections than agreed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from omni_stage.engine.wire import (
    MAGIC,
    MAX_PER_PEER,
    Client,
    Counters,
    RelayError,
    Server,
    address_of,
    new_ticket,
)

from .pods import free_ports

Held = dict[bytes, memoryview]


@pytest.fixture
def held() -> Held:
    """What the server hands out."""
    return {}


@pytest.fixture
def server(held: Held) -> Iterator[Server]:
    """On a free port."""
    server = Server(0, held.get, Counters())
    yield server
    server.close()


def put(held: Held, data: bytes) -> bytes:
    """Offer data; its ticket."""
    ticket = new_ticket()
    held[ticket] = memoryview(data)
    return ticket


async def fetch(client: Client, server: Server, ticket: bytes, size: int, patience: float = 5) -> bytes:
    """The data of a ticket."""
    into = bytearray(size)
    await client.fetch(("127.0.0.1", server.port), ticket, memoryview(into), patience)
    return bytes(into)


@pytest.mark.parametrize("size", [0, 1, 1000, 5_000_000])
async def test_data_arrives_whole(server: Server, held: Held, size: int) -> None:
    data = os.urandom(size)
    assert await fetch(Client(), server, put(held, data), size) == data


async def test_many_at_once_share_few_connections(server: Server, held: Held) -> None:
    client = Client()
    data = [os.urandom(20_000 + n) for n in range(100)]
    tickets = [put(held, d) for d in data]
    found = await asyncio.gather(*(fetch(client, server, t, len(d)) for t, d in zip(tickets, data, strict=True)))
    assert found == data
    (peer,) = client._peers.values()
    assert len(peer.idle) <= MAX_PER_PEER
    client.close()


async def test_data_that_is_gone_is_said_to_be_gone(server: Server, held: Held) -> None:
    client = Client()
    with pytest.raises(RelayError, match="does not hold the data any more"):
        await fetch(client, server, new_ticket(), 5)
    assert await fetch(client, server, put(held, b"still"), 5) == b"still"


async def test_another_length_than_promised_is_refused(server: Server, held: Held) -> None:
    with pytest.raises(RelayError, match="has 3 bytes where 5 are due"):
        await fetch(Client(), server, put(held, b"abc"), 5)


async def test_a_peer_that_is_not_there_is_named() -> None:
    (port,) = free_ports(1)
    with pytest.raises(RelayError, match=f"from 127.0.0.1:{port}"):
        await Client().fetch(("127.0.0.1", port), new_ticket(), memoryview(bytearray(3)), 5)


async def test_a_peer_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(RelayError, match="no progress for 0 s"):
        await Client().fetch(mute.getsockname(), new_ticket(), memoryview(bytearray(3)), 0.2)


async def test_a_peer_that_breaks_off_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_half() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"+" + (10).to_bytes(8) + b"half")

        half = asyncio.create_task(asyncio.to_thread(answer_half))
        with pytest.raises(RelayError, match="fetching 10 bytes"):
            await Client().fetch(listener.getsockname(), new_ticket(), memoryview(bytearray(10)), 5)
        await half


async def test_a_connection_whose_server_restarted_is_not_used_again(held: Held) -> None:
    client = Client()
    first = Server(0, held.get, Counters())
    assert await fetch(client, first, put(held, b"one"), 3) == b"one"
    port = first.port
    first.close()
    second = Server(port, held.get, Counters())
    assert await fetch(client, second, put(held, b"two"), 3) == b"two"
    second.close()


async def test_a_stranger_gets_nothing(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(MAGIC + new_ticket())
    assert await reader.read(9) == b"-" + bytes(8)
    writer.close()


def test_closing_ends_the_thread_and_frees_the_port(held: Held) -> None:
    server = Server(0, held.get, Counters())
    server.close()
    assert not server._thread.is_alive()
    Server(server.port, held.get, Counters()).close()


@pytest.mark.parametrize(
    ("text", "address"), [("a.b:80", ("a.b", 80)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[fd00::1]:2", ("fd00::1", 2))]
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address
