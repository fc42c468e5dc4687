"""A replica whose stages do not fit on one node together is placed on another: a real scheduler and claim controller
decide, the test is kubelet and DRA driver."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from e2e.cluster import control_plane
from e2e.fake_gpu.profiles import gpus_of
from e2e.fake_gpu.slices import resource_slice
from omni_operator.planning import starting
from omni_operator.runtime.controller import Key
from tests.api.conftest import DEVICE_CLASS, Api, install_crd, wait_for
from tests.api.fault_proxy import fault_proxy
from tests.api.in_process import controller, looked_at, model, put
from tests.api.test_operator import condition, create

pytestmark = pytest.mark.api

SMALL, BIG = "gpu-1", "gpu-2"
CPUS = {SMALL: "3500m", BIG: "40"}
FILLER = {"requests": {"cpu": "7"}}
"""Four on the big node, labelled as ours, so that the scheduler by itself prefers the small one: it is emptier, and has
fewer pods of the model's Service."""


def node(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
    }


def beat(api: Api) -> None:
    """kubelet's sign of life; without it the node is tainted after a while."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, cpu in CPUS.items():
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        size = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
        status = {"capacity": size, "allocatable": size, "conditions": [ready]}
        api.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, "application/merge-patch+json")
        path = f"/api/v1/nodes/{name}"
        api.call("PATCH", path, {"spec": {"taints": None}}, "application/merge-patch+json")


@pytest.fixture
def scheduled(tmp_path: Path) -> Iterator[Api]:
    """Two nodes with a GPU each, and kube-scheduler."""
    with control_plane(tmp_path / "cluster", scheduler=True) as kubeconfig:
        api = Api(kubeconfig)
        install_crd(api)
        create(api, DEVICE_CLASS)
        command = [str(api.binary), "--kubeconfig", str(kubeconfig), "proxy", "--port=0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            api.proxy = f"http://{process.stdout.readline().split()[-1]}"
            for name in CPUS:
                create(api, node(name))
                uid = api.call("GET", f"/api/v1/nodes/{name}")["metadata"]["uid"]
                create(api, resource_slice(name, uid, gpus_of(name, 1, "h100-80gb"), 1))
            beat(api)
            pod = {"nodeName": BIG, "containers": [{"name": "c", "image": "i", "resources": FILLER}]}
            for i in range(4):
                metadata = {"name": f"filler-{i}", "labels": {"omnimodel.io/name": "tiny-omni"}}
                create(api, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
            yield api
            process.terminate()


def cordon(api: Api, name: str, closed: bool) -> None:
    path = f"/api/v1/nodes/{name}"
    api.call("PATCH", path, {"spec": {"unschedulable": closed}}, "application/merge-patch+json")


def play(api: Api) -> None:
    """What has a node is ready; what is deleted is gone."""
    beat(api)
    for pod in api.get("pods"):
        name = pod["metadata"]["name"]
        with suppress(HTTPError):
            if "deletionTimestamp" in pod["metadata"]:
                api.call("DELETE", api.path("pods", name), {"gracePeriodSeconds": 0})
            elif pod["spec"].get("nodeName"):
                ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-29T12:00:00Z"}
                others = [c for c in pod["status"].get("conditions", []) if c["type"] != "Ready"]
                api.patch_status("pods", name, {"phase": "Running", "conditions": [*others, ready]})


def nodes(api: Api) -> set[str]:
    found = [p for p in api.get("pods") if p["metadata"].get("labels", {}).get("omnimodel.io/component") == "stage"]
    return {str(pod["spec"].get("nodeName")) for pod in found}


async def test_stages_that_do_not_fit_on_a_node_together_move_to_one_where_they_do(
    scheduled: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "PLACEMENT_GRACE", timedelta(seconds=3))
    manifest = model("tiny-omni")
    for stage, cpu in zip(manifest["spec"]["stages"], ("1", "3"), strict=True):
        stage["resources"] = {"requests": {"cpu": cpu}}
    cordon(scheduled, BIG, True)
    put(scheduled, manifest)
    told: list[str] = []

    def played() -> bool:
        play(scheduled)
        found = condition(scheduled, "tiny-omni", "Scheduled").get("message", "")
        if found not in told:
            told.append(found)
        if "Insufficient cpu" in found:
            cordon(scheduled, BIG, False)
        return condition(scheduled, "tiny-omni", "Ready").get("status") == "True"

    with fault_proxy(scheduled.proxy) as proxy:
        async with controller(proxy, "default") as running, looked_at(running, Key("default", "tiny-omni")):
            await asyncio.to_thread(wait_for, "it is Ready", played, 90)
    said = f"talker needs cpu that node {SMALL} lacks (Insufficient cpu)"
    assert any(message.startswith(f"{said}; unless that ends") for message in told), told
    assert any(message.startswith(f"{said}; its GPUs were released") for message in told), told
    assert nodes(scheduled) == {BIG}
    [row] = scheduled.get("omnimodels", "tiny-omni")["status"]["groupRestarts"]
    assert (row["restarts"], row["node"]) == (1, SMALL)
