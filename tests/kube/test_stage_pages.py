"""Stage pods are asked directly, side by side, now and then, and whatever they answer is never an error."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from omni_operator.kube.stage_pages import PAGE_SECONDS, StagePages, page_of
from omni_operator.planning.observed import Observed, ObservedPod, StagePage

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
PAGE = {"memory_bytes": 7 * 2**30, "memory_kind": "torch", "mps": {"attached": True, "reason": ""}}
RUNNING = ObservedPod(
    "p", "u", 0, "stage", "thinker", "h", 1,
    node="a", ready=True, started=NOW - timedelta(minutes=5), address="127.0.0.1",
)  # fmt: skip


@dataclass
class Supervisor:
    """Answers on a port of its own; counts what it was asked."""

    answer: Callable[[], web.Response] = lambda: web.json_response(PAGE)
    asked: int = 0
    port: int = 0
    now: float = 1000.0
    delay: float = 0.0
    runner: web.AppRunner | None = field(default=None)

    def pages(self) -> StagePages:
        return StagePages(self.port, lambda: self.now)


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    import asyncio

    found = Supervisor()

    async def handle(request: web.Request) -> web.Response:
        assert request.path == "/stage"
        found.asked += 1
        await asyncio.sleep(found.delay)
        return found.answer()

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.port = runner.addresses[0][1]
    yield found
    await runner.cleanup()


def world(*pods: ObservedPod) -> Observed:
    return Observed({pod.name: pod for pod in pods}, {}, {})


async def page(pages: StagePages, pod: ObservedPod = RUNNING) -> StagePage | None:
    return (await pages.added(world(pod), NOW)).pods[pod.name].page


async def test_a_pod_is_asked_once_a_minute(supervisor: Supervisor) -> None:
    pages = supervisor.pages()
    for _ in range(5):
        assert await page(pages) == StagePage(7 * 2**30, "torch")
    assert supervisor.asked == 1
    supervisor.now += 61
    await page(pages)
    assert supervisor.asked == 2


async def test_a_pod_that_became_ready_or_was_replaced_is_asked_at_once(supervisor: Supervisor) -> None:
    pages = supervisor.pages()
    await page(pages, replace(RUNNING, ready=False))
    await page(pages)
    await page(pages, replace(RUNNING, uid="another"))
    assert supervisor.asked == 3


@pytest.mark.parametrize(
    "change",
    [
        {"component": "front"},
        {"address": ""},
        {"deleting": True},
        {"started": None},
        {"ready": False, "started": NOW - timedelta(seconds=5)},
    ],
    ids=str,
)
async def test_others_are_not_asked(supervisor: Supervisor, change: dict[str, Any]) -> None:
    assert await page(supervisor.pages(), replace(RUNNING, **change)) is None
    assert supervisor.asked == 0


async def test_many_that_do_not_answer_cost_one_wait(supervisor: Supervisor) -> None:
    supervisor.delay = 30
    pods = [replace(RUNNING, name=f"p{i}", uid=f"u{i}") for i in range(20)]
    began = time.monotonic()
    seen = await supervisor.pages().added(world(*pods), NOW)
    assert time.monotonic() - began < PAGE_SECONDS + 1
    assert {pod.page for pod in seen.pods.values()} == {None}


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(status=500),
        lambda: web.Response(text="<html>"),
        lambda: web.Response(text="[" * 200_000),
        lambda: web.Response(body=b"\xff\xfe"),
        lambda: web.json_response([PAGE]),
        lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"}),
        lambda: web.Response(text=json.dumps(PAGE) + " " * 100_000 + "x"),
    ],
)
async def test_nonsense_is_no_page(supervisor: Supervisor, answer: Callable[[], web.Response]) -> None:
    supervisor.answer = answer
    assert await page(supervisor.pages()) is None
    assert supervisor.asked == 1, "a redirect is not followed"


async def test_nobody_there_is_no_error() -> None:
    assert await page(StagePages(9)) is None
    assert await page(StagePages(9), replace(RUNNING, address="not an address")) is None


@pytest.mark.parametrize("memory", [None, -1, 0, 1 << 60, 1.5, True, "7", [7]])
def test_only_a_plausible_number_is_memory(memory: Any) -> None:
    assert page_of({**PAGE, "memory_bytes": memory}) == StagePage(None, "torch")


def test_why_it_is_not_attached_is_one_short_line() -> None:
    found = page_of({**PAGE, "mps": {"attached": "yes", "reason": "no\x00 \n daemon" + "x" * 5000}})
    assert found is not None
    assert found.mps_problem.startswith("no\x00 daemon")
    assert len(found.mps_problem) == 300


def test_a_page_says_whether_its_engine_hangs() -> None:
    for said, silent in ((True, True), (False, False), ("yes", False)):
        assert page_of({**PAGE, "silent": said}) == StagePage(7 * 2**30, "torch", silent=silent)
