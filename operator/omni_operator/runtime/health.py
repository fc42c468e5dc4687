"""The operator's HTTP: /healthz, /readyz and /metrics, on a port of its own."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from omni_operator.runtime.metrics import Metrics


async def serve(port: int, metrics: Metrics, alive: Callable[[], bool], ready: Callable[[], bool]) -> web.AppRunner:
    """Start serving; `await runner.cleanup()` ends it. Raises OSError where the port is taken."""

    def answer(check: Callable[[], bool]) -> Callable[[web.Request], object]:
        async def handler(_: web.Request) -> web.Response:
            good = check()
            return web.Response(status=200 if good else 503, text="ok\n" if good else "no\n")

        return handler

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", answer(alive)),  # type: ignore[arg-type]
            web.get("/readyz", answer(ready)),  # type: ignore[arg-type]
            web.get("/metrics", scrape),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
