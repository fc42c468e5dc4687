"""The least that a client of the Kubernetes API can be: aiohttp and JSON. What benchmarks measure with."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

Call = Callable[..., Awaitable[Any]]
Watch = Callable[[str], AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]]


@asynccontextmanager
async def connection(config: dict[str, Any]) -> AsyncIterator[tuple[Call, Watch]]:
    """A bare aiohttp client with 32 connections."""
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    with tempfile.TemporaryDirectory() as folder:
        tls = tls_context(Path(folder), cluster, user)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=32), read_bufsize=2**21) as http:

            async def call(method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
                data = None if body is None else json.dumps(body)
                async with http.request(
                    method, cluster["server"] + path, data=data, headers={"Content-Type": kind}
                ) as answer:
                    text = await answer.text()
                    if answer.status >= 300:
                        raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]}")
                    return json.loads(text)

            @asynccontextmanager
            async def watch(path: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
                async with http.get(cluster["server"] + path) as answer:
                    yield (json.loads(line) async for line in answer.content)

            yield call, watch


def tls_context(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    for name, text in (("crt", user["client-certificate-data"]), ("key", user["client-key-data"])):
        (folder / name).write_bytes(base64.b64decode(text))
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    tls.load_cert_chain(folder / "crt", folder / "key")
    return tls
