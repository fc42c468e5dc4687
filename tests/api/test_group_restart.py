"""A fault of a whole GPU, as kubelet would report it, against a real API server."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.api.conftest import Api, wait_for
from tests.api.test_operator import create, declared, play_until_ready

pytestmark = pytest.mark.api


def end_container(api: Api, pod: str, code: int) -> None:
    """Kubelet's report of a container that ended and is to be restarted."""
    ended = {"terminated": {"exitCode": code, "reason": "Error", "message": "CUDA error: an illegal memory access"}}
    container = {
        "name": "stage",
        "image": "stage:1",
        "imageID": "",
        "ready": False,
        "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": ended,
    }
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-29T12:00:00Z"}
    api.patch_status("pods", pod, {"conditions": [ready], "containerStatuses": [container]})


def uids(api: Api) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in api.get("pods")}


def test_a_cuda_fault_restarts_the_gpu_s_pods_together_and_says_so(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    create(api, declared("tiny-omni"))
    play_until_ready(api, "tiny-omni")
    before = uids(api)
    end_container(api, "tiny-omni-0-talker", 72)

    def history() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = api.get("omnimodels", "tiny-omni")["status"].get("groupRestarts", [])
        return found

    [restart] = wait_for("the restart is told", history)
    assert (restart["replica"], restart["restarts"]) == (0, 1)
    assert "talker ended with exit code 72" in restart["reason"]
    graces = {p["metadata"]["name"]: p["metadata"].get("deletionGracePeriodSeconds") for p in api.get("pods")}
    assert graces.pop("tiny-omni-0--front") is None
    assert set(graces.values()) == {5}, "nothing is left to drain"
    # There is no kubelet here: the API server keeps bound pods until their grace period is confirmed.
    for pod in before:
        if "front" not in pod:
            api.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    play_until_ready(api, "tiny-omni")
    after = uids(api)
    assert after["tiny-omni-0--front"] == before["tiny-omni-0--front"]
    assert not {uid for name, uid in after.items() if "front" not in name} & set(before.values())


def test_a_stage_s_own_failure_restarts_nothing_else_and_names_it(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    create(api, declared("tiny-omni"))
    play_until_ready(api, "tiny-omni")
    before = uids(api)
    end_container(api, "tiny-omni-0-talker", 71)

    def ready() -> dict[str, Any]:
        rows = api.get("omnimodels", "tiny-omni")["status"]["conditions"]
        found: dict[str, Any] = next(row for row in rows if row["type"] == "Ready")
        return found if found["reason"] == "OutOfBudget" else {}

    assert "talker (Restarting" in wait_for("the reason", ready)["message"]
    assert uids(api) == before


def told(api: Api) -> dict[str, Any]:
    """The restart of the one replica, once it is in the status."""
    rows = lambda: api.get("omnimodels", "tiny-omni")["status"].get("groupRestarts")  # noqa: E731
    [found] = wait_for("the restart is told", rows)
    return dict(found)


def test_an_unhealthy_gpu_is_a_fault_of_its_group_and_is_named(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    create(api, declared("tiny-omni"))
    play_until_ready(api, "tiny-omni")
    health = {"resourceID": "gpu.nvidia.com/node-a/gpu-0", "health": "Unhealthy", "message": "XID 79"}
    container = {
        "name": "stage",
        "image": "stage:1",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-11-29T12:00:00Z"}},
        "allocatedResourcesStatus": [{"name": "claim:gpus/slot0", "resources": [health]}],
    }
    api.patch_status("pods", "tiny-omni-0-talker", {"containerStatuses": [container]})
    assert told(api)["reason"] == "a GPU of talker is unhealthy: gpu.nvidia.com/node-a/gpu-0: XID 79"
    going = lambda: [p["metadata"]["name"] for p in api.get("pods") if "deletionTimestamp" in p["metadata"]]  # noqa: E731
    wait_for("all stage pods go", lambda: len(going()) == 4)
    assert "tiny-omni-0--front" not in going()


def test_an_eviction_for_a_tainted_gpu_takes_the_whole_group(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    """What Kubernetes' device-taint controller does to a pod: a condition, and then the deletion."""
    create(api, declared("tiny-omni"))
    play_until_ready(api, "tiny-omni")
    evicted = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByDeviceTaintManager",
        # Without it the disruption controller takes the condition for a stale one, and takes it back.
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    conditions = api.get("pods", "tiny-omni-0-talker")["status"]["conditions"]
    api.patch_status("pods", "tiny-omni-0-talker", {"conditions": [*conditions, evicted]})
    api.must("delete", "pod", "tiny-omni-0-talker", "--wait=false")
    restart = told(api)
    assert "a GPU of talker was tainted" in restart["reason"]
    going = lambda: [p for p in api.get("pods") if "deletionTimestamp" in p["metadata"]]  # noqa: E731
    wait_for("all stage pods go", lambda: len(going()) == 4)
    assert told(api)["restarts"] == 1
