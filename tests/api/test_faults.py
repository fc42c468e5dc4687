"""Any call may fail, in any way: the pass ends, comes back later, and the end is the same."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import control_plane
from omni_operator.kube import client as kube_client
from omni_operator.runtime import queue
from omni_operator.runtime.controller import Key
from tests.api.conftest import Api, install_crd, operator, wait_for
from tests.api.fault_proxy import Broken, Fault, FaultProxy, kubeconfig_for
from tests.api.in_process import controller, model, put
from tests.api.test_operator import CHILDREN, condition, create, play_until_ready

pytestmark = pytest.mark.api

FAULTS: tuple[Fault, ...] = (409, 410, 429, 500, 503, *Broken)

STRIDE = int(os.environ.get("OMNI_FAULT_STRIDE", "9"))
"""Every so many calls gets a fault; with 1, every call gets every fault, which takes minutes."""


def world(api: Api, name: str) -> Any:
    """What a model came to, without what differs between two of them."""
    pods = {p["metadata"]["name"]: p for p in api.get("pods") if p["metadata"]["labels"]["omnimodel.io/name"] == name}
    arguments = {n: p["metadata"]["annotations"]["omnimodel.io/pod-config"] for n, p in pods.items()}
    names = [
        f"{kind}/{item['metadata']['name']}"
        for kind in CHILDREN
        for item in api.get(kind)
        if item["metadata"].get("labels", {}).get("omnimodel.io/name") == name
    ]
    conditions = ((api.get("omnimodels", name) or {}).get("status") or {}).get("conditions", [])
    result = {
        "children": sorted(names),
        "gates": {pod: bool(found["spec"].get("schedulingGates")) for pod, found in sorted(pods.items())},
        "arguments": arguments,
        "conditions": [
            (c.get("status"), c.get("reason"), c.get("message"), c.get("observedGeneration")) for c in conditions
        ],
    }
    return repr(result).replace(name, "NAME")


async def settle(api: Api, name: str, wanted: str | None, seconds: float = 40.0) -> str:
    """The world once it is as wanted, or once it no longer moves."""

    def reached() -> str | None:
        now = world(api, name)
        if wanted is not None:
            return now if now == wanted else None
        time.sleep(1)
        return now if now == world(api, name) else None

    try:
        return str(await asyncio.to_thread(wait_for, "the wanted end", reached, seconds))
    except AssertionError:
        return world(api, name)


def once(at: int, fault: Fault, base: int) -> Any:
    return lambda number, method, path: fault if number == base + at else None


def longer(manifest: dict[str, Any]) -> dict[str, Any]:
    """An update that restarts pods."""
    return {**manifest, "spec": {**manifest["spec"], "startupTimeout": "77m"}}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_fault_at_any_call_of_a_start_and_of_an_update(
    api: Api, faulty: FaultProxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "FIRST_BACKOFF_SECONDS", 0.02)
    monkeypatch.setattr(kube_client, "TIMEOUT_SECONDS", 0.5)
    async with controller(faulty, api.namespace) as running:

        async def run(manifest: dict[str, Any], wanted: str | None, at: int) -> tuple[str, int]:
            name = manifest["metadata"]["name"]
            await asyncio.to_thread(put, api, manifest)
            base = len(faulty.calls)
            faulty.decide = once(at, fault, base)
            running.queue.add(Key(api.namespace, name))
            return await settle(api, name, wanted), len(faulty.calls) - base

        started, calls = await run(model("first"), None, -1)
        updated, more = await run(longer(model("first")), None, -1)
        assert (calls > 15, more > 15) == (True, True)
        for at in range(FAULTS.index(fault) % STRIDE, max(calls, more), STRIDE):
            name = f"m{at}"
            assert (await run(model(name), started, at))[0] == started, f"start, {fault} at call {at}"
            assert (await run(longer(model(name)), updated, at))[0] == updated, f"update, {fault} at call {at}"
            await asyncio.to_thread(api.call, "DELETE", api.path("omnimodels", name))


async def test_one_that_always_fails_does_not_hold_up_another(api: Api, faulty: FaultProxy) -> None:
    for name in ("good", "poor"):
        create(api, model(name))
    faulty.decide = lambda number, method, path: 500 if "poor" in path else None
    async with controller(faulty, api.namespace) as running:
        for _ in range(3):
            running.queue.add(Key(api.namespace, "poor"))
        running.queue.add(Key(api.namespace, "good"))
        await settle(api, "good", None)
        assert condition(api, "good", "Accepted").get("status") == "True"
        assert condition(api, "poor", "Accepted") == {}
        assert running.metrics.registry.get_sample_value("omni_operator_reconcile_retries_total") >= 2
        faulty.decide = lambda number, method, path: None
        await asyncio.to_thread(wait_for, "the other, too", lambda: condition(api, "poor", "Accepted"))


async def test_a_write_that_fails_again_and_again_is_told_in_the_status(api: Api, faulty: FaultProxy) -> None:
    """Such as a Service for which the cluster has no address left."""
    create(api, model("m"))
    faulty.decide = lambda number, method, path: 500 if "services/m?" in path and method == "PATCH" else None
    async with controller(faulty, api.namespace) as running:
        running.queue.add(Key(api.namespace, "m"))
        told = await asyncio.to_thread(
            wait_for, "told so", lambda: (c := condition(api, "m", "Ready")).get("reason") == "WriteFailed" and c
        )
        assert "services/m: 500 InternalError: injected" in told["message"]
        assert condition(api, "m", "Accepted")["status"] == "True"
        faulty.decide = lambda number, method, path: None
        gone = lambda: condition(api, "m", "Ready")["reason"] != "WriteFailed"  # noqa: E731
        await asyncio.to_thread(wait_for, "it goes with its cause", gone)


async def test_it_leaves_the_server_alone_for_as_long_as_it_is_asked_to(api: Api, faulty: FaultProxy) -> None:
    create(api, model("m"))
    faulty.decide = lambda number, method, path: 429
    async with controller(faulty, api.namespace) as running:
        running.queue.add(Key(api.namespace, "m"))
        await asyncio.sleep(0.4)
        first = len(faulty.calls)
        await asyncio.sleep(0.5)
        assert len(faulty.calls) == first <= 8, "one pass only: the object and its children"


def test_every_third_call_fails_watches_included(api: Api, faulty: FaultProxy, tmp_path: Path) -> None:
    chance = random.Random(7)

    def decide(number: int, method: str, path: str) -> Fault | None:
        faults = [fault for fault in FAULTS if fault is not Broken.HANG]
        return chance.choice(faults) if chance.random() < 0.33 else None

    proxied = replace(api, kubeconfig=kubeconfig_for(faulty.url, tmp_path))
    with operator(proxied, tmp_path / "log") as process:
        wait_for("it leads", lambda: "leading" in (tmp_path / "log").read_text())
        faulty.decide = decide
        for i in range(5):
            create(api, model(f"m{i}"))
        time.sleep(8)
        faulty.cut_all()
        time.sleep(2)
        faulty.decide = lambda number, method, path: None
        for i in range(5):
            play_until_ready(api, f"m{i}", 60)
        assert process.poll() is None, (tmp_path / "log").read_text()


def test_the_api_server_is_away_for_a_while(api: Api, faulty: FaultProxy, tmp_path: Path) -> None:
    proxied = replace(api, kubeconfig=kubeconfig_for(faulty.url, tmp_path))
    create(api, model("before"))
    with operator(proxied, tmp_path / "log") as process:
        play_until_ready(api, "before")
        faulty.decide = lambda number, method, path: Broken.CUT
        faulty.cut_all()
        create(api, model("meanwhile"))
        api.must("delete", "service", "before")
        time.sleep(5)
        faulty.decide = lambda number, method, path: None
        play_until_ready(api, "meanwhile", 60)
        wait_for("what was deleted meanwhile is back", lambda: api.get("services", "before"))
        assert process.poll() is None, (tmp_path / "log").read_text()


def test_etcd_and_the_api_server_are_killed_under_way(tmp_path: Path) -> None:
    state = tmp_path / "cluster"
    with control_plane(state) as kubeconfig:
        api = Api(kubeconfig)
        install_crd(api)
        with operator(api, tmp_path / "log") as process:
            wait_for("it leads", lambda: "leading" in (tmp_path / "log").read_text())
            for i in range(8):
                create(api, model(f"m{i}"))
            for daemon in ("kube-apiserver", "etcd"):
                os.kill(json.loads((state / "status.json").read_text())[daemon]["pid"], signal.SIGKILL)
            answers = lambda: api.kubectl("get", "--raw", "/readyz").returncode == 0  # noqa: E731
            wait_for("the API server is back", answers, 60)
            wait_for("the CRD is served", lambda: api.kubectl("get", "omnimodels").returncode == 0, 60)
            assert api.kubectl("delete", "service", "m0", "--ignore-not-found").returncode == 0
            create(api, model("afterwards"))
            # 5 pods each: nothing was lost, nothing was made twice.
            pods = lambda: api.must("get", "pods", "-o", "name").split()  # noqa: E731
            wait_for("all pods", lambda: len(pods()) == 9 * 5, 90)
            wait_for("the Service is back", lambda: api.kubectl("get", "service", "m0").returncode == 0, 30)
            assert process.poll() is None, (tmp_path / "log").read_text()
