"""Nodes of one GPU each: a replica whose slots may be on several nodes gets one GPU of each and answers across them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from e2e.cases.conftest import GPUS, INSTANCE, Manifest, Space
from e2e.cases.puppets import NAME, applied, claims, pods, puppets, ready
from e2e.cluster import Cluster, DevicePluginConfig, Gpus, Progress, external_kubeconfig, up
from e2e.deploy import NAMESPACE, Target, target
from e2e.fake_gpu.slices import device_class
from omni_operator.kube.offers import FRESH_SECONDS

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(external_kubeconfig() is not None, reason="adds a node to the cluster"),
]

ONE = Gpus(1, GPUS.profile, GPUS.gates)
SPREAD = {"card": "h100-80gb", "sharing": {"strategy": "MPS"}, "placement": "AnyNode"}


@pytest.fixture(scope="module")
def nodes(operator: Target) -> Iterator[Cluster]:
    """Two nodes with one GPU each, until the cases end."""
    cluster = up(INSTANCE, ONE, Progress(), nodes=2)
    target(Progress(), INSTANCE, ONE, ("operator", "puppet"))
    yield cluster
    cluster.remove_node(1)
    cluster.set_gpus(GPUS)
    operator.kubectl("rollout", "status", "deployment/omni-operator", "-n", NAMESPACE, "--timeout=90s")


def test_slots_on_two_nodes_have_a_claim_and_a_gpu_each_and_the_model_is_ready(nodes: Cluster, stage: Space) -> None:
    applied(stage, puppets([{"name": "talker", "gpus": [1]}], gpus=SPREAD))
    model = ready(stage)
    found = pods(stage)
    gpu_nodes = {found[name]["spec"]["nodeName"] for name in ("0-thinker", "0-talker")}
    assert gpu_nodes == {each.name for each in nodes.nodes}
    assert len(claims(stage)) == 2
    assert len({row["uuid"] for row in model["status"]["gpus"]}) == 2


def test_slots_that_must_be_together_find_no_node(nodes: Cluster, stage: Space) -> None:
    applied(stage, puppets([{"name": "talker", "gpus": [1]}], gpus={**SPREAD, "placement": "SameNode"}))

    def unschedulable() -> Manifest | None:
        row = stage.condition(NAME, "Scheduled")
        return row if row.get("reason") == "WaitingForGpu" else None

    row = stage.wait("no node is found", unschedulable, 60)
    assert "2 GPUs on one node" in row["message"]
    assert "nodeName" not in pods(stage)["0-thinker"]["spec"]


def test_shared_gpus_of_the_device_plugin_take_one_replica_each(nodes: Cluster, stage: Space) -> None:
    for node in nodes.nodes:
        node.set_gpus(Gpus(1, GPUS.profile, plugin=DevicePluginConfig("mps", 2)))
    nodes.kubectl("delete", "deviceclass", "gpu.nvidia.com", "--ignore-not-found")
    shares = [{"name": name, "gpuMemory": "30%"} for name in ("thinker", "talker")]
    applied(stage, puppets(shares, replicas=2, gpus=SPREAD))
    model = ready(stage, seconds=150)
    assert model["status"]["sharing"] == "MPS/DevicePlugin"
    placed = {name: pod["spec"]["nodeName"] for name, pod in pods(stage).items()}
    assert placed["0-thinker"] == placed["0-talker"]
    assert placed["1-thinker"] == placed["1-talker"]
    assert placed["0-thinker"] != placed["1-thinker"], "another group's shares would come on top"
    stage.on.kubectl("delete", "omnimodels", "--all", "-n", stage.name, "--cascade=foreground", "--timeout=120s")
    for node in nodes.nodes:
        node.set_gpus(ONE)
    nodes.kubectl("apply", "-f", "-", stdin=json.dumps(device_class()))
    time.sleep(FRESH_SECONDS)  # for so long the operator may believe that nothing has changed


def test_a_replica_goes_when_its_node_goes_and_comes_back_with_it(nodes: Cluster, stage: Space) -> None:
    applied(stage, puppets([{"name": "talker", "gpus": [1]}], gpus=SPREAD))
    ready(stage)
    nodes.remove_node(1)
    stage.wait("it is not ready", lambda: stage.condition(NAME, "Ready").get("status") == "False", 90)
    nodes.add_node()
    target(Progress(), INSTANCE, ONE, ("operator", "puppet"))
    ready(stage, seconds=180)
    assert {pods(stage)[name]["spec"]["nodeName"] for name in ("0-thinker", "0-talker")} == {
        each.name for each in nodes.nodes
    }
