"""Measured memory reaches the status from the stage pods themselves, and costs neither calls nor writes at rest."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from omni_operator.kube.stage_pages import StagePages
from omni_operator.rendering import Settings
from omni_operator.runtime.controller import Key
from omni_operator.runtime.reconcile import Memory, reconcile
from tests.api.conftest import Api, wait_for
from tests.api.fault_proxy import FaultProxy
from tests.api.in_process import controller, model, put
from tests.api.test_at_rest import idle
from tests.api.test_cli_live import answering
from tests.api.test_operator import play_until_ready

pytestmark = pytest.mark.api

GIB = 2**30


class Pages:
    """What every stage pod answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.body: dict[str, Any] = {
            "memory_bytes": 40 * GIB,
            "memory_kind": "torch",
            "mps": {"attached": True, "pipe_directory": "/tmp/nvidia-mps", "reason": ""},
        }

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        handler.wfile.write(json.dumps(self.body).encode())


def run_containers(api: Api, address: str) -> None:
    """What a kubelet would say of them, and `play_kubelet` does not."""
    started = "2026-11-29T12:00:00Z"
    for pod in api.get("pods"):
        container = pod["spec"]["containers"][0]
        state = {"name": container["name"], "image": "i", "imageID": "", "ready": True, "restartCount": 0}
        running = {"containerStatuses": [{**state, "state": {"running": {"startedAt": started}}}]}
        where = {"podIP": address, "podIPs": [{"ip": address}]}
        api.patch_status("pods", pod["metadata"]["name"], {**running, **where})


def measured(api: Api) -> dict[str, tuple[int | None, str | None]]:
    rows = api.get("omnimodels", "m")["status"]["stages"]
    return {row["name"]: (row.get("measuredMemoryBytes"), row.get("measuredMemoryKind")) for row in rows}


async def test_figures_come_without_calls_and_stay_without_writes(api: Api, faulty: FaultProxy) -> None:
    put(api, model("m"))
    pages = Pages()
    with answering(pages.answer) as (address, port):
        async with controller(faulty, api.namespace) as running:
            running.memory = Memory(StagePages(port))

            async def nudge() -> None:
                while True:
                    running.queue.add(Key(api.namespace, "m"))
                    await asyncio.sleep(0.2)

            nudging = asyncio.create_task(nudge())
            await asyncio.to_thread(play_until_ready, api, "m")
            await asyncio.to_thread(run_containers, api, address)
            await asyncio.to_thread(wait_for, "figures", lambda: set(measured(api).values()) == {(40 * GIB, "torch")})
            nudging.cancel()
            await idle(running, faulty)
            assert set(measured(api).values()) == {(40 * GIB, "torch")}
            assert pages.asked == 4, "each stage pod once, the front never"

            pages.body["memory_bytes"] = 41 * GIB
            writes, calls = await one_pass(running.client, faulty, api.namespace, StagePages(port))
            assert (writes, calls <= 8) == ([], True)
            assert pages.asked == 8
            pages.body["memory_bytes"] = 50 * GIB
            writes, _ = await one_pass(running.client, faulty, api.namespace, StagePages(port))
            assert [path.rpartition("/")[2].partition("?")[0] for _, path in writes] == ["status"]
            assert set(measured(api).values()) == {(50 * GIB, "torch")}
        writes, _ = await one_pass_alone(faulty, api.namespace, StagePages(9))
        assert writes == [], "nobody answers: the figures stay"


async def one_pass(client: Any, faulty: FaultProxy, namespace: str, pages: StagePages) -> tuple[list[Any], int]:
    """Its writes, and how many calls it made."""
    faulty.calls.clear()
    done = await reconcile(client, namespace, "m", Settings("stage:1"), lambda: datetime.now(UTC), memory=Memory(pages))
    assert done is not None
    return faulty.writes(), len(faulty.calls)


async def one_pass_alone(faulty: FaultProxy, namespace: str, pages: StagePages) -> tuple[list[Any], int]:
    async with controller(faulty, namespace) as running:
        return await one_pass(running.client, faulty, namespace, pages)
