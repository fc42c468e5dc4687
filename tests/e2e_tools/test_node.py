"""A real node: names, Services, containers with invented GPUs, and nothing left when it is gone.

Needs root; the node has a name of its own, so that a developer's own cluster is left alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import Cluster, Gpus, down, up
from e2e.cluster.record import Process
from e2e.cluster.requirements import cgroup_mounts
from tests.e2e_tools.pods import event_of, on_our_node, pod, ready

NAME = "tools-test"
ON = {"MPSSupport": True, "TimeSlicingSettings": True}

pytestmark = on_our_node


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    running = up(NAME, Gpus(2, "h100-80gb", ON))
    yield running
    down(NAME)


@pytest.fixture
def apply(cluster: Cluster) -> Iterator[Callable[..., None]]:
    """Apply manifests; what was applied is deleted after the test, and all its claims are unprepared then."""
    applied: list[str] = []

    def put(*manifests: dict[str, Any]) -> None:
        text = yaml.safe_dump_all(manifests)
        applied.append(text)
        cluster.kubectl("apply", "-f", "-", stdin=text)

    yield put
    for text in applied:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)
    deadline = time.monotonic() + 60
    while left := [each for name in ("claims", "mps") for each in (cluster.gpu_plugin / name).iterdir()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def claim(*entries: tuple[list[str], dict[str, Any]]) -> dict[str, Any]:
    """A claim on two GPUs, `slot0` and `slot1`, with a sharing for some requests."""
    requests = [{"name": f"slot{index}", "exactly": {"deviceClassName": "gpu.nvidia.com"}} for index in range(2)]
    kind = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    config = [
        {"requests": names, "opaque": {"driver": "gpu.nvidia.com", "parameters": {**kind, "sharing": sharing}}}
        for names, sharing in entries
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "m-0"},
        "spec": {"devices": {"requests": requests, "config": config}},
    }


def test_headless_and_cluster_services_resolve_and_answer(cluster: Cluster, apply: Callable[..., None]) -> None:
    serve = "echo hello > /tmp/index.html; httpd -f -p 8080 -h /tmp"
    service = {"apiVersion": "v1", "kind": "Service"}
    ports = {"ports": [{"port": 80, "targetPort": 8080}], "selector": {"app": "web"}}
    apply(
        {**service, "metadata": {"name": "stages"}, "spec": {"clusterIP": "None", **ports}},
        {**service, "metadata": {"name": "web"}, "spec": ports},
        pod("web", serve, hostname="thinker", subdomain="stages"),
        pod("client", "sleep 1000"),
    )
    ready(cluster, "web", "client")
    fetch = "wget -qO- http://thinker.stages:8080/ && wget -qO- http://web/"
    for name in ("client", "web"):  # a pod also reaches itself through its Service
        assert cluster.kubectl("exec", name, "--", "sh", "-c", fetch) == "hello\nhello\n"


def test_stages_of_a_slot_share_a_gpu_and_its_memory_under_mps(cluster: Cluster, apply: Callable[..., None]) -> None:
    mps = {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "48Gi"}}
    apply(
        claim((["slot0"], mps), (["slot1"], mps)),
        pod("thinker", "touch /dev/shm/from-thinker; sleep 1000", "slot0"),
        pod("encoder", "sleep 1000", "slot0"),
        pod("talker", "sleep 1000", "slot1"),
    )
    ready(cluster, "thinker", "encoder", "talker")

    def in_pod(name: str, script: str) -> str:
        return cluster.kubectl("exec", name, "--", "sh", "-c", script).strip()

    uuids = {name: in_pod(name, "echo $NVIDIA_VISIBLE_DEVICES") for name in ("thinker", "encoder", "talker")}
    assert uuids["thinker"] == uuids["encoder"] != uuids["talker"]
    marker = json.loads(in_pod("talker", "cat /run/invented-gpus/*.json"))
    assert (marker["uuid"], marker["invented"]) == (uuids["talker"], True)
    assert in_pod("thinker", "echo $CUDA_MPS_PIPE_DIRECTORY") == "/tmp/nvidia-mps"
    daemon = json.loads(in_pod("thinker", "cat /tmp/nvidia-mps/invented-daemon.json"))
    assert daemon["limits"] == {uuids["thinker"]: "49152M"}
    assert in_pod("encoder", "ls /dev/shm") == "from-thinker"
    assert in_pod("talker", "ls /dev/shm") == ""
    apply(pod("late", "sleep 1000", ""))
    assert "2 MPS control daemons in one container" in event_of(cluster, "late", "Failed")


def test_a_gate_that_is_off_fails_the_prepare_in_nvidias_words(cluster: Cluster, apply: Callable[..., None]) -> None:
    cluster.set_gpus(Gpus(2, "h100-80gb", {}))
    try:
        apply(claim((["slot0"], {"strategy": "MPS"})), pod("refused", "sleep 1000", "slot0"))
        message = event_of(cluster, "refused", "FailedPrepareDynamicResources")
        assert "unknown GPU sharing strategy: MPS" in message
    finally:
        cluster.set_gpus(Gpus(2, "h100-80gb", ON))


def test_a_killed_node_comes_up_again_and_leaves_nothing_when_down() -> None:
    first = up(NAME)
    os.kill(first.record.init.pid, signal.SIGKILL)
    second = up(NAME)
    assert second.record.init != first.record.init
    assert "node" in second.kubectl("get", "nodes", "-o", "name")
    tag = second.instance.tag
    assert down(NAME)
    assert Process.of(second.record.init.pid) is None
    assert not Path(f"/sys/class/net/{tag}").exists()
    assert not [root for root, _, _ in cgroup_mounts() if (root / tag).exists()]
    assert str(second.instance.folder) not in Path("/proc/mounts").read_text()
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    assert tag not in routes
