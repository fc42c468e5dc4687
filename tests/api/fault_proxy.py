"""A reverse proxy in front of a real API server that fails calls on demand, watches included."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


class Broken(StrEnum):
    """Faults that are no answer of an API server."""

    HANG = "no answer"
    CUT = "connection cut before the call arrives"
    LOST = "the call is carried out, its answer lost"
    HALF = "the answer ends half way"
    PAGE = "a load balancer's page with status 200"


Fault = int | Broken


@dataclass
class FaultProxy:
    """`decide` is asked for each call: its number, method and path with query."""

    upstream: str
    decide: Callable[[int, str, str], Fault | None] = lambda number, method, path: None
    url: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _open: set[asyncio.Transport] = field(default_factory=set)

    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path in self.calls if method != "GET"]

    def cut_all(self) -> None:
        """End every connection, watches in the middle of a line."""
        self._loop.call_soon_threadsafe(lambda: [transport.abort() for transport in list(self._open)])

    async def serve(self, up: threading.Event, stop: asyncio.Event) -> None:
        async with aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout()) as session:
            app = web.Application(client_max_size=2**24)

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(request, session)

            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            up.set()
            await stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        fault = self.decide(len(self.calls), request.method, request.path_qs)
        self.calls.append((request.method, request.path_qs))
        if isinstance(fault, int):
            status = {"kind": "Status", "status": "Failure", "reason": REASONS[fault], "message": "injected"}
            headers = {"Retry-After": "1"} if fault == 429 else {}
            return web.json_response({**status, "code": fault}, status=fault, headers=headers)
        if fault is Broken.PAGE:
            return web.Response(text="<html>Sorry</html>", content_type="text/html")
        if fault is Broken.HANG:
            await asyncio.sleep(3600)
        if fault is Broken.CUT:
            return _abort(request)
        assert request.transport is not None
        self._open.add(request.transport)
        try:
            return await self._forward(request, session, fault)
        finally:
            self._open.discard(request.transport)

    async def _forward(
        self, request: web.Request, session: aiohttp.ClientSession, fault: Fault | None
    ) -> web.StreamResponse:
        headers = {key: value for key, value in request.headers.items() if key in ("Content-Type", "Accept")}
        body = await request.read() or None
        async with session.request(request.method, self.upstream + request.path_qs, headers=headers, data=body) as got:
            if fault is Broken.LOST:
                await got.read()
                return _abort(request)
            answer = web.StreamResponse(status=got.status, headers={"Content-Type": got.content_type})
            await answer.prepare(request)
            async for chunk in got.content.iter_any():
                await answer.write(chunk[: len(chunk) // 2] if fault is Broken.HALF else chunk)
                if fault is Broken.HALF:
                    return _abort(request)
            await answer.write_eof()
            return answer


def _abort(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """The proxy, in a thread of its own."""
    proxy = FaultProxy(upstream)
    up, stop = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=proxy._loop.run_until_complete, args=(proxy.serve(up, stop),), daemon=True)
    thread.start()
    assert up.wait(10)
    try:
        yield proxy
    finally:
        proxy._loop.call_soon_threadsafe(stop.set)
        thread.join(10)


def kubeconfig_for(url: str, folder: Path) -> Path:
    """A kubeconfig that leads to `url` without credentials, which the proxy has."""
    path = folder / "faulty.kubeconfig"
    named = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", **named}))
    return path
