"""What a model does when its GPU, its MPS daemon or its node's kubelet is lost while it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cases.conftest import GPUS, INSTANCE, Space
from e2e.cases.puppets import NAME, applied, changed, pods, puppets, ready, since, uids
from e2e.cluster import Cluster, Fault, Gpus, external_kubeconfig, up
from e2e.deploy import Target

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(external_kubeconfig() is not None, reason="breaks invented GPUs"),
]

FAULTS = {
    Fault("NoSchedule"): ("is unhealthy", "Xid 79: GPU has fallen off the bus"),
    Fault("NoExecute", healthy=True): (),  # where all pods are evicted before the next pass, nothing is left to restart
}
"""What the status must say of each as the cause of the restart."""
ON_GPU = {"0-thinker", "0-talker"}


@pytest.fixture
def cluster(operator: Target) -> Iterator[Cluster]:
    """Ours, with two GPUs that are well, before and after."""
    found = up(INSTANCE, GPUS)
    yield found
    found.heal_gpus()
    # A kubelet that starts again may take the driver's slices away; a driver that starts again publishes them.
    found.set_gpus(Gpus(GPUS.count, GPUS.profile))
    found.set_gpus(GPUS)


def gpu_of(space: Space) -> tuple[str, int]:
    """The uuid of slot 0's GPU, and its minor number; empty while it has none."""
    [slot] = space.model(NAME)["status"]["gpus"]
    found = [
        result["device"]
        for claim in space.on.items("resourceclaims", space.name)
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    ]
    return (slot["uuid"], int(found[0].removeprefix("gpu-"))) if found and slot.get("uuid") else ("", -1)


def leaves(space: Space, uuid: str) -> None:
    """Wait until slot 0 has another GPU than this."""
    space.wait("it has another GPU", lambda: gpu_of(space)[0] not in ("", uuid), 90)


def test_a_model_leaves_a_gpu_that_fails_for_another_and_starts_there_in_order(cluster: Cluster, stage: Space) -> None:
    applied(stage, puppets())
    ready(stage)
    for fault, words in FAULTS.items():
        before, (uuid, minor) = uids(pods(stage)), gpu_of(stage)
        cluster.heal_gpus()
        cluster.fail_gpu(minor, fault)
        leaves(stage, uuid)
        ready(stage, seconds=120)
        after = pods(stage)
        assert changed(before, uids(after)) >= ON_GPU
        assert since(after["0-talker"], "PodScheduled") >= since(after["0-thinker"], "Ready")
        [restart] = stage.model(NAME)["status"]["groupRestarts"]
        for each in words:
            assert each in restart["reason"]


def test_a_lost_mps_daemon_is_said_and_the_model_is_ready_again_once_there_is_one(
    cluster: Cluster, stage: Space
) -> None:
    applied(stage, puppets())
    ready(stage)
    cluster.lose_mps()
    stage.wait("it is said", lambda: stage.condition(NAME, "SharingReady").get("reason") == "MpsNotAttached", 60)
    assert stage.condition(NAME, "Ready")["status"] == "False"
    cluster.heal_gpus()
    ready(stage, seconds=120)
    assert stage.condition(NAME, "SharingReady")["status"] == "True"


def test_a_node_whose_kubelet_stops_is_said_and_no_pod_is_replaced(cluster: Cluster, stage: Space) -> None:
    applied(stage, puppets())
    ready(stage)
    before = uids(pods(stage))
    cluster.stop_kubelet()
    try:
        stage.wait("it is not ready", lambda: stage.condition(NAME, "Ready").get("status") == "False", 60)
    finally:
        cluster.start_kubelet()
    ready(stage, seconds=60)
    assert uids(pods(stage)) == before
