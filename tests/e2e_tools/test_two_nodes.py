"""Two nodes of one cluster: pods, Services, names, logs and invented GPUs work from both; either may go."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster, ClusterError, DevicePluginConfig, Gpus, down, up
from e2e.cluster.record import Process
from tests.e2e_tools.pods import NAME, apply, in_pod, on_our_node, pod, ready, until

pytestmark = on_our_node
PAIR = {"near": 0, "far": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    running = up(NAME, [Gpus(1, "h100-80gb"), Gpus(1, "l40s")], nodes=2)
    yield running
    down(NAME)


def on_node(cluster: Cluster, index: int, manifest: dict[str, Any]) -> dict[str, Any]:
    manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": cluster.node(index).name}
    return manifest


@pytest.fixture(scope="module")
def pair(cluster: Cluster) -> Cluster:
    """A web server on each node, each under its own name of a headless Service, and a Service over both."""
    service = {"apiVersion": "v1", "kind": "Service"}
    ports = {"ports": [{"port": 80, "targetPort": 8080}], "selector": {"role": "web"}}
    apply(cluster, {**service, "metadata": {"name": "stages"}, "spec": {"clusterIP": "None", **ports}})
    apply(cluster, {**service, "metadata": {"name": "web"}, "spec": ports})
    for name, index in PAIR.items():
        serve = f"echo {name} | tee /tmp/index.html; httpd -f -p 8080 -h /tmp"
        made = on_node(cluster, index, pod(name, serve, hostname=name, subdomain="stages"))
        made["metadata"]["labels"]["role"] = "web"
        apply(cluster, made)
    ready(cluster, *PAIR)
    return cluster


def address(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("get", "pod", name, "-o", "jsonpath={.status.podIP}")


@pytest.mark.parametrize(("here", "there"), [("near", "far"), ("far", "near")])
def test_pods_of_two_nodes_reach_each_other_by_address_name_and_service(pair: Cluster, here: str, there: str) -> None:
    assert in_pod(pair, here, f"timeout 10 wget -qO- http://{address(pair, there)}:8080/") == there
    assert in_pod(pair, here, f"timeout 10 wget -qO- http://{there}.stages:8080/") == there
    answers = {in_pod(pair, here, "timeout 10 wget -qO- http://web/") for _ in range(20)}
    assert answers == set(PAIR), "the Service has both behind it, from either node"


def test_logs_and_exec_work_on_both_nodes_and_the_machine_reaches_both(pair: Cluster) -> None:
    for name in PAIR:
        assert pair.kubectl("logs", name).strip() == name
        assert in_pod(pair, name, "hostname") == name
        with urllib.request.urlopen(f"http://{address(pair, name)}:8080/", timeout=10) as answer:
            assert answer.read().decode().strip() == name


def test_each_node_has_gpus_of_its_own(cluster: Cluster) -> None:
    slices = json.loads(cluster.kubectl("get", "resourceslices", "-o", "json"))["items"]
    products = {
        each["spec"]["nodeName"]: each["spec"]["devices"][0]["attributes"]["productName"]["string"] for each in slices
    }
    assert products == {cluster.name: "NVIDIA H100 80GB HBM3", cluster.node(1).name: "NVIDIA L40S"}
    uuids = {each["spec"]["devices"][0]["attributes"]["uuid"]["string"] for each in slices}
    assert len(uuids) == 2
    cluster.node(1).set_gpus(Gpus(1, "h100-80gb", plugin=DevicePluginConfig("mps", 4)))
    node = json.loads(cluster.kubectl("get", "node", cluster.node(1).name, "-o", "json"))
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4", "one by DRA, the other by the device plugin"
    cluster.node(1).set_gpus(Gpus(1, "l40s"))


def test_the_api_server_may_be_killed_and_answers_again(cluster: Cluster) -> None:
    before = cluster.daemons()["kube-apiserver"]
    cluster.restart_api_server()
    after = cluster.daemons()["kube-apiserver"]
    assert (after["starts"], after["ended"]) == (before["starts"] + 1, "signal 9")
    assert after["pid"] != before["pid"]
    assert cluster.kubectl("get", "nodes", "-o", "name").split()


def condition(cluster: Cluster, node: str) -> str:
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return cluster.kubectl("get", "node", node, "-o", path)


def test_a_node_without_its_kubelet_is_not_ready_and_its_containers_run_on(pair: Cluster) -> None:
    node = pair.node(1)
    node.stop_kubelet()
    until("the node is not ready", lambda: condition(pair, node.name) == "Unknown", 40)
    assert in_pod(pair, "near", f"timeout 10 wget -qO- http://{address(pair, 'far')}:8080/") == "far"
    node.start_kubelet()
    assert condition(pair, node.name) == "True"


def test_a_node_that_is_removed_takes_its_pods_along_and_another_may_join(pair: Cluster) -> None:
    pair.remove_node(1)
    until("its pod is gone", lambda: "far" not in pair.kubectl("get", "pods", "-o", "name"), 30)
    with pytest.raises(ClusterError, match="has no node 1") as raised:
        pair.node(1)
    assert "nodes=2" in raised.value.remedy
    assert condition(pair, pair.add_node().name) == "True"


def test_nothing_of_either_node_is_left(cluster: Cluster) -> None:
    nodes = cluster.nodes
    assert len(nodes) == 2
    os.kill(nodes[1].record.init.pid, signal.SIGKILL)
    assert down(NAME)
    for node in nodes:
        assert Process.of(node.record.init.pid) is None
        assert not Path(f"/sys/class/net/{node.instance.tag}").exists()
        assert not node.instance.record.exists()
