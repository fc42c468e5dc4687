"""Plain pods on the resource of the stand-in device plugin, on a real node with one invented GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster, DevicePluginConfig, Gpus, down, up
from tests.e2e_tools.pods import NAME, apply, in_pod, on_our_node, pod, ready, until

pytestmark = on_our_node
SLICED = DevicePluginConfig("time-slicing", 4, rename=True)
SHARED = DevicePluginConfig("mps", 10)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    running = up(NAME)
    yield running
    down(NAME)


@pytest.fixture(autouse=True)
def _no_pods_are_left(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.kubectl("delete", "pods", "--all", "--timeout=60s")


def of_resource(name: str, resource: str, count: int = 1) -> dict[str, Any]:
    made = pod(name, "sleep 1000")
    made["spec"]["containers"][0]["resources"] = {"limits": {resource: str(count)}}
    return made


def node(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", "node", cluster.instance.node_name, "-o", "json"))
    return found


@pytest.mark.parametrize("config", [SLICED, SHARED], ids=lambda config: config.sharing)
def test_two_pods_see_the_one_gpu_of_the_node(cluster: Cluster, config: DevicePluginConfig) -> None:
    cluster.set_gpus(Gpus(1, "h100-80gb", plugin=config))
    found = node(cluster)
    assert found["status"]["allocatable"][config.resource] == str(config.replicas)
    assert found["metadata"]["labels"]["nvidia.com/gpu.sharing-strategy"] == config.sharing
    assert cluster.kubectl("get", "resourceslices", "-o", "name") == "", "a node offers its GPUs in one way"
    apply(cluster, of_resource("thinker", config.resource), of_resource("talker", config.resource))
    ready(cluster, "thinker", "talker")
    markers = [json.loads(in_pod(cluster, name, "cat /run/invented-gpus/*.json")) for name in ("thinker", "talker")]
    assert markers[0] == markers[1]
    assert in_pod(cluster, "talker", "echo $NVIDIA_VISIBLE_DEVICES") == markers[0]["uuid"]


def test_pods_under_mps_share_the_daemon_and_its_memory(cluster: Cluster) -> None:
    cluster.set_gpus(Gpus(1, "h100-80gb", plugin=SHARED))
    apply(cluster, of_resource("thinker", SHARED.resource), of_resource("talker", SHARED.resource))
    ready(cluster, "thinker", "talker")
    daemon = json.loads(in_pod(cluster, "thinker", "cat $CUDA_MPS_PIPE_DIRECTORY/invented-daemon.json"))
    assert list(daemon["limits"].values()) == ["8155M"]
    in_pod(cluster, "thinker", "touch /dev/shm/from-thinker")
    assert in_pod(cluster, "talker", "ls /dev/shm") == "from-thinker"


def test_a_pods_own_shared_memory_hides_the_daemons(cluster: Cluster) -> None:
    """Which is why a pod under MPS must mount none: it could not talk to the daemon."""
    cluster.set_gpus(Gpus(1, "h100-80gb", plugin=SHARED))
    own = of_resource("own", SHARED.resource)
    own["spec"]["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    own["spec"]["containers"][0]["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    apply(cluster, of_resource("thinker", SHARED.resource), own)
    ready(cluster, "thinker", "own")
    in_pod(cluster, "thinker", "touch /dev/shm/from-thinker")
    assert in_pod(cluster, "own", "ls /dev/shm") == ""


def test_two_replicas_for_one_container_are_refused_under_mps(cluster: Cluster) -> None:
    cluster.set_gpus(Gpus(1, "h100-80gb", plugin=SHARED))
    apply(cluster, of_resource("greedy", SHARED.resource, 2))

    def refused() -> Any:
        status = json.loads(cluster.kubectl("get", "pod", "greedy", "-o", "json"))["status"]
        return status if status["phase"] == "Failed" else None

    status = until("the pod is refused", refused)
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "maximum request size for shared resources is 1; found 2" in status["message"]


def test_the_way_in_which_a_node_offers_its_gpus_can_be_changed(cluster: Cluster) -> None:
    cluster.set_gpus(Gpus(1, "h100-80gb"))
    assert cluster.kubectl("get", "resourceslices", "-o", "name")
    assert not [each for each in node(cluster)["metadata"]["labels"] if each.startswith("nvidia.com/")]
    cluster.set_gpus(Gpus(2, "l40s", plugin=DevicePluginConfig()))
    found = node(cluster)
    assert found["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert found["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-L40S"
    cluster.set_gpus(Gpus())
    assert not [each for each in node(cluster)["metadata"]["labels"] if each.startswith("nvidia.com/")]
