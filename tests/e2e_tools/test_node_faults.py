"""Invented GPUs that fail, on a real node: pods are evicted, or told that theirs is ill; MPS is lost and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster, DevicePluginConfig, Fault, Gpus, down, up
from tests.e2e_tools.pods import NAME, apply, in_pod, on_our_node, pod, ready, until

pytestmark = on_our_node
DRA = Gpus(1, "h100-80gb", {"MPSSupport": True})
SHARED = DevicePluginConfig("mps", 10)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    running = up(NAME, DRA)
    yield running
    down(NAME)


@pytest.fixture(autouse=True)
def _all_is_well_again(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.heal_gpus()
    cluster.kubectl("delete", "pods,resourceclaims", "--all", "--timeout=60s")
    until("its claims are unprepared", lambda: not any((cluster.gpu_plugin / "claims").iterdir()))


def claim(sharing: dict[str, Any] | None = None) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    config = [{"requests": ["slot0"], "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    request = {"name": "slot0", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    devices = {"requests": [request], "config": config if sharing else []}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "m-0"},
        "spec": {"devices": devices},
    }


def exists(cluster: Cluster, name: str) -> bool:
    return bool(cluster.kubectl("get", "pod", name, "--ignore-not-found"))


def health(cluster: Cluster, name: str) -> dict[str, Any]:
    """What the kubelet says of the one resource of a pod's container."""
    [status] = json.loads(cluster.kubectl("get", "pod", name, "-o", "json"))["status"]["containerStatuses"]
    found = status.get("allocatedResourcesStatus") or [{"resources": [{}]}]
    return dict(found[0]["resources"][0]) if found[0]["resources"] else {}


def test_a_gpu_that_fails_is_unhealthy_in_the_pods_status_until_it_is_healed(cluster: Cluster) -> None:
    apply(cluster, claim(), pod("thinker", "sleep 1000", "slot0"))
    ready(cluster, "thinker")
    until("its GPU is healthy", lambda: health(cluster, "thinker").get("health") == "Healthy")
    cluster.fail_gpu(0, Fault(message="Xid 94: contained ECC error"))
    until("its GPU is unhealthy", lambda: health(cluster, "thinker").get("health") == "Unhealthy")
    assert "Xid 94" in health(cluster, "thinker")["message"]
    cluster.heal_gpus()
    until("its GPU is healthy again", lambda: health(cluster, "thinker").get("health") == "Healthy")


def test_a_taint_as_nvidias_driver_sets_it_evicts_nothing_and_takes_no_new_pod(cluster: Cluster) -> None:
    apply(cluster, claim(), pod("old", "sleep 1000", "slot0"))
    ready(cluster, "old")
    cluster.fail_gpu(0)
    until(
        "the taint is published", lambda: "gpu.nvidia.com/xid" in cluster.kubectl("get", "resourceslices", "-o", "json")
    )
    cluster.kubectl("delete", "pod", "old")
    until("the claim is free", lambda: "pending" in cluster.kubectl("get", "resourceclaims"))
    apply(cluster, pod("new", "sleep 1000", "slot0"))
    until("it is not scheduled", lambda: "Unschedulable" in cluster.kubectl("get", "pod", "new", "-o", "json"))
    cluster.heal_gpus()
    ready(cluster, "new")


def test_a_taint_that_no_pod_tolerates_evicts(cluster: Cluster) -> None:
    apply(cluster, claim(), pod("thinker", "sleep 1000", "slot0"))
    ready(cluster, "thinker")
    cluster.fail_gpu(0, Fault("NoExecute"))
    until("it is evicted", lambda: not exists(cluster, "thinker"))


def test_the_mps_daemon_is_lost_and_comes_back(cluster: Cluster) -> None:
    apply(cluster, claim({"strategy": "MPS"}), pod("thinker", "sleep 1000", "slot0"))
    ready(cluster, "thinker")
    look = "test -S $CUDA_MPS_PIPE_DIRECTORY/control && echo there || echo lost"
    assert in_pod(cluster, "thinker", look) == "there"
    cluster.lose_mps()
    assert in_pod(cluster, "thinker", look) == "lost"
    cluster.heal_gpus()
    assert in_pod(cluster, "thinker", look) == "there"


def test_the_device_plugins_gpu_that_fails_is_no_longer_offered(cluster: Cluster) -> None:
    def allocatable() -> str:
        node = json.loads(cluster.kubectl("get", "node", cluster.name, "-o", "json"))
        return str(node["status"]["allocatable"]["nvidia.com/gpu"])

    cluster.set_gpus(Gpus(1, "h100-80gb", plugin=SHARED))
    assert allocatable() == "10"
    cluster.fail_gpu(0)
    until("nothing is offered", lambda: allocatable() == "0")
    cluster.heal_gpus()
    until("all is offered", lambda: allocatable() == "10")


def test_the_device_plugin_registers_with_a_kubelet_that_starts_again(cluster: Cluster) -> None:
    cluster.set_gpus(Gpus(1, "h100-80gb", plugin=SHARED))
    cluster.stop_kubelet()
    cluster.start_kubelet()
    greedy = pod("after", "sleep 1000")
    greedy["spec"]["containers"][0]["resources"] = {"limits": {SHARED.resource: "1"}}

    def runs() -> bool:
        """A pod that comes before the plugin is back is refused, as on a real node; the next one is not."""
        cluster.kubectl("delete", "pod", "after", "--ignore-not-found")
        apply(cluster, greedy)
        return "condition met" in cluster.kubectl(
            "wait", "--for=condition=Ready", "--timeout=5s", "pod/after", check=False
        )

    until("a pod gets its replica", runs, 60)
