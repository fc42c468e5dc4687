"""The life of a replica against a real API server: turns, limits, releases, edits and fights.

The tests say what kubelet and the scheduler would.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.error import HTTPError

import pytest

from omni_operator.planning import starting
from omni_operator.runtime.controller import Key
from tests.api.conftest import NODE, Api, wait_for
from tests.api.fault_proxy import FaultProxy
from tests.api.in_process import controller, model, put
from tests.api.test_bad_world import merge, uids
from tests.api.test_operator import allocate, condition, create, declared, play_kubelet, play_until_ready

pytestmark = pytest.mark.api

FIRST = "tiny-omni-0-thinker"
SECOND = "tiny-omni-0-talker"
TURN = "omnimodel.io/turn-since"


def opened(api: Api, pod: str) -> dict[str, Any]:
    """The pod, once its gate is open."""
    found: dict[str, Any] = wait_for(
        f"the gate of {pod} opens", lambda: (p := api.get("pods", pod)) and not p["spec"].get("schedulingGates") and p
    )
    return found


def unschedulable(api: Api, pod: str, words: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    api.patch_status("pods", pod, {"conditions": [condition]})


def test_a_gate_s_opening_says_since_when(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("tiny-omni"))
    since = datetime.fromisoformat(opened(api, FIRST)["metadata"]["annotations"][TURN])
    assert abs(datetime.now(UTC) - since) < timedelta(seconds=20)
    assert TURN not in api.get("pods", SECOND)["metadata"]["annotations"]
    merge(api, "pods", FIRST, {"metadata": {"annotations": {TURN: "yesterday"}}})
    play_until_ready(api, "tiny-omni")


def test_a_limit_that_passes_is_told_without_any_event(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("tiny-omni", startupTimeout="10s"))
    opened(api, FIRST)
    unschedulable(api, FIRST, "0/1 nodes are available: 1 node(s) had untolerated taint(s).")
    ready = wait_for(
        "told so", lambda: (c := condition(api, "tiny-omni", "Ready")).get("reason") == "StageStartTimeout" and c, 40
    )
    assert "thinker was not ready within 10 s (startupTimeout) of its turn" in ready["message"]
    assert "untolerated taint" in ready["message"]
    assert api.get("pods", SECOND)["spec"]["schedulingGates"]
    allocate(api, "tiny-omni-0")
    play_until_ready(api, "tiny-omni")


async def test_a_group_without_room_on_its_node_is_released_and_placed_elsewhere(
    api: Api, faulty: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "PLACEMENT_GRACE", timedelta(seconds=2))
    put(api, model("tiny-omni"))
    async with controller(faulty, api.namespace) as running:

        def reach(what: str, check: Any) -> Any:
            """With what the watch would bring."""

            def look() -> Any:
                loop.call_soon_threadsafe(running.queue.add, Key(api.namespace, "tiny-omni"))
                return check()

            return wait_for(what, look, 90)

        def get_stuck() -> None:
            reach("the first gate", lambda: (p := api.get("pods", FIRST)) and not p["spec"].get("schedulingGates"))
            allocate(api, "tiny-omni-0")
            play_kubelet(api, "thinker")
            reach("the second gate", lambda: (p := api.get("pods", SECOND)) and not p["spec"].get("schedulingGates"))
            unschedulable(api, SECOND, "0/1 nodes are available: 1 Insufficient cpu.")

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(get_stuck)
        before = await asyncio.to_thread(uids, api)
        said = f"talker needs cpu that node {NODE} lacks (Insufficient cpu)"
        scheduled = lambda words: words in condition(api, "tiny-omni", "Scheduled").get("message", "")  # noqa: E731
        await asyncio.to_thread(reach, "it is told first", lambda: scheduled(said))
        await asyncio.to_thread(reach, "released", lambda: scheduled(f"{said}; its GPUs were released"))
        [row] = api.get("omnimodels", "tiny-omni")["status"]["groupRestarts"]
        assert (row["restarts"], row["node"]) == (1, NODE)
        for pod in before:
            if "front" not in pod:
                await asyncio.to_thread(api.kubectl, "delete", "pod", pod, "--grace-period=0", "--force")
        api.patch_status("resourceclaims", "tiny-omni-0", {"allocation": None, "reservedFor": None})

        def anew() -> bool:
            found = api.get("pods", FIRST)
            return bool(found) and found["metadata"]["uid"] != before[FIRST]

        await asyncio.to_thread(reach, "made anew", anew)
        pod = api.get("pods", FIRST)
        [preferred] = pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert preferred["preference"]["matchFields"][0]["values"] == [NODE]
        assert pod["spec"]["schedulingGates"], "the pause is not over"
        await asyncio.to_thread(reach, "placed anew", lambda: not api.get("pods", FIRST)["spec"].get("schedulingGates"))


def test_an_edited_image_is_put_back_in_place(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("tiny-omni"))
    play_until_ready(api, "tiny-omni")
    before = uids(api)
    image = lambda: api.get("pods", FIRST)["spec"]["containers"][0]["image"]  # noqa: E731
    api.must("set", "image", f"pod/{FIRST}", "stage=else:1")
    wait_for("the image is back", lambda: image() == "stage:1")
    assert uids(api) == before


def fight(api: Api, stop: threading.Event, edits: list[tuple[str, str, dict[str, Any]]], made: list[int]) -> None:
    """Another controller that wants something else, and looks every 20 ms."""
    while not stop.is_set():
        for plural, name, patch in edits:
            with suppress(HTTPError):
                path = f"{api.path(plural, name)}?fieldManager=mesh-controller"
                api.call("PATCH", path, patch, "application/merge-patch+json")
                made[0] += 1
        time.sleep(0.02)


def test_a_fight_over_our_objects_is_told_and_makes_few_writes(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    create(api, declared("tiny-omni"))
    play_until_ready(api, "tiny-omni")
    edits: list[tuple[str, str, dict[str, Any]]] = [
        ("services", "tiny-omni", {"spec": {"selector": {"app": "mesh"}}}),
        ("services", "tiny-omni-peers", {"metadata": {"annotations": {"omnimodel.io/template-hash": "x"}}}),
        ("pods", SECOND, {"metadata": {"labels": {"omnimodel.io/replica": "7"}}}),
    ]
    before, made, stop = uids(api), [0], threading.Event()
    versions: dict[str, set[str]] = {name: set() for _, name, _ in edits}
    fighter = threading.Thread(target=fight, args=(api, stop, edits, made))
    fighter.start()
    try:
        end = time.monotonic() + 8
        while time.monotonic() < end:
            for plural, name, _ in edits:
                found = api.get(plural, name)
                ours = [r for r in found["metadata"]["managedFields"] if r["manager"] == "omni-operator"]
                versions[name] |= {row["time"] for row in ours}
            time.sleep(0.05)
        told = wait_for(
            "told so", lambda: (c := condition(api, "tiny-omni", "Ready")).get("reason") == "Contested" and c, 10
        )
    finally:
        stop.set()
        fighter.join()
    assert "by mesh-controller" in told["message"]
    assert made[0] > 50
    for name, times in versions.items():
        assert len(times) <= 7, f"{name}: pauses of 1, 2, 4 and 8 s"
    assert uids(api) == before
    wait_for("it ends when they do", lambda: condition(api, "tiny-omni", "Ready").get("status") == "True", 120)
    assert api.get("pods", SECOND)["metadata"]["labels"]["omnimodel.io/replica"] == "0"


def test_thirty_quick_edits_end_at_the_last_and_make_few_pods(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    """Each pass makes the pods of one generation at most, and 30 edits come in within a few passes."""
    create(api, declared("tiny-omni"))
    play_until_ready(api, "tiny-omni")
    made: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            made.update(uids(api).values())
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        started = time.monotonic()
        for i in range(1, 31):
            merge(api, "omnimodels", "tiny-omni", {"spec": {"startupTimeout": f"{i}m"}})
        took = time.monotonic() - started

        def played() -> bool:
            # There is no kubelet here: the API server keeps bound pods until their grace period is confirmed.
            for pod in api.get("pods"):
                if "deletionTimestamp" in pod["metadata"]:
                    api.call("DELETE", api.path("pods", pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
            if not api.get("resourceclaims", "tiny-omni-0").get("status", {}).get("allocation"):
                allocate(api, "tiny-omni-0")
            play_kubelet(api)
            ready = condition(api, "tiny-omni", "Ready")
            return ready.get("status") == "True" and ready.get("observedGeneration") == 31

        wait_for("Ready for the last generation", played, 90)
    finally:
        stop.set()
        watcher.join()
    config = json.loads(api.get("pods", FIRST)["metadata"]["annotations"]["omnimodel.io/pod-config"])
    assert config["startup_timeout_seconds"] == 30 * 60
    assert len(made) <= 5 + 5 * 4, f"{len(made)} pods in {took:.1f} s of edits"
