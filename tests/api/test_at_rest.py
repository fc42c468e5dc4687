"""Nothing changes: nothing is written, and a look at an OmniModel costs few calls."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from omni_operator.rendering import Settings
from omni_operator.runtime.controller import Key
from omni_operator.runtime.reconcile import reconcile
from tests.api.conftest import Api, wait_for
from tests.api.fault_proxy import FaultProxy
from tests.api.in_process import controller, model, put
from tests.api.test_operator import condition, play_until_ready

pytestmark = pytest.mark.api

MODELS = 100


async def test_a_full_resync_of_100_unchanged_models_writes_nothing(api: Api, faulty: FaultProxy) -> None:
    names = [f"m{i}" for i in range(MODELS)]
    for name in names:
        put(api, model(name))

    def accepted() -> bool:
        rows: list[dict[str, Any]] = api.get("omnimodels")
        return all(any(c["type"] == "Accepted" for c in row.get("status", {}).get("conditions", [])) for row in rows)

    async with controller(faulty, api.namespace) as running:
        keys = [Key(api.namespace, name) for name in names]
        for key in keys:
            running.queue.add(key)
        await asyncio.to_thread(wait_for, "all are accepted", accepted, 120)
        for _ in range(2):  # the first of these brings each status up to date with its last step
            await idle(running, faulty)
            faulty.calls.clear()
            for key in keys:
                running.queue.add(key)
        await idle(running, faulty)
    assert faulty.writes() == []
    assert len(faulty.calls) >= 5 * MODELS


async def idle(running: Any, faulty: FaultProxy) -> None:
    """Until no key waits and no call is made for a while."""
    calls = -1
    while len(running.queue) or calls != len(faulty.calls):
        calls = len(faulty.calls)
        await asyncio.sleep(0.5)


async def test_a_pass_over_a_ready_model_makes_at_most_8_calls_and_no_write(api: Api, faulty: FaultProxy) -> None:
    put(api, model("m"))
    async with controller(faulty, api.namespace) as running:

        def play() -> None:
            play_until_ready(api, "m")

        async def nudge() -> None:
            while True:
                running.queue.add(Key(api.namespace, "m"))
                await asyncio.sleep(0.2)

        nudging = asyncio.create_task(nudge())
        await asyncio.to_thread(play)
        nudging.cancel()
        await idle(running, faulty)
        faulty.calls.clear()
        before = running.client.calls
        done = await reconcile(running.client, api.namespace, "m", Settings("stage:1"), lambda: datetime.now(UTC))
        assert done is not None
        assert (done.step.empty, done.status_written) == (True, False)
        assert faulty.writes() == []
        assert running.client.calls - before == len(faulty.calls) <= 8
    assert condition(api, "m", "Ready")["status"] == "True"
