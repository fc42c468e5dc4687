"""Each way of sharing: what pods ask for, which GPU they get, what their containers find, and what is said of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cases.conftest import GPUS, INSTANCE, Manifest, Space
from e2e.cases.puppets import NAME, applied, claims, pods, puppets, ready, seen_by
from e2e.cluster import Cluster, DevicePluginConfig, Gpus, external_kubeconfig, up
from e2e.fake_gpu.slices import device_class
from omni_operator.kube.offers import FRESH_SECONDS

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(external_kubeconfig() is not None, reason="changes how the invented GPUs are offered"),
]

HALVES = [{"name": "thinker", "gpuMemory": "40%"}, {"name": "talker", "gpuMemory": "20%"}]
APART = [{"name": "thinker", "gpus": [0]}, {"name": "talker", "gpus": [1]}]


@pytest.fixture
def cluster(stage: Space) -> Iterator[Cluster]:
    """Ours, as it was once the case ends."""
    found = up(INSTANCE)
    yield found
    stage.on.kubectl("delete", "omnimodels", "--all", "-n", stage.name, "--cascade=foreground", "--timeout=120s")
    found.set_gpus(GPUS)
    if not found.kubectl("get", "deviceclasses", "-o", "name"):
        stage.on.kubectl("apply", "-f", "-", stdin=json.dumps(device_class()))
        time.sleep(FRESH_SECONDS)


def offered(cluster: Cluster, count: int = 1, **config: Any) -> None:
    """By the device plugin alone."""
    cluster.set_gpus(Gpus(count, "h100-80gb", plugin=DevicePluginConfig(**config)))
    cluster.kubectl("delete", "deviceclass", "gpu.nvidia.com", "--ignore-not-found")
    time.sleep(FRESH_SECONDS)  # for so long the operator may believe that nothing has changed


def sharing(manifest: Manifest, **fields: Any) -> Manifest:
    manifest["spec"]["gpus"]["sharing"] = fields
    return manifest


def gpus_of(space: Space) -> dict[str, list[str]]:
    """What each stage's container finds."""
    found = {}
    for process in ("thinker", "talker"):
        files = seen_by(space, f"{NAME}-0-{process}", "ls", "/run/invented-gpus").split()
        found[process] = sorted(f.split("-", 1)[1].removesuffix(".json") for f in files if f.endswith(".json"))
    return found


def mps_of(space: Space, process: str) -> bool:
    """Whether a stage says that it is attached to an MPS daemon."""
    page = seen_by(
        space, f"{NAME}-0-{process}", "python3", "-c",
        "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:9400/stage').read().decode())",
    )  # fmt: skip
    return bool(json.loads(page)["mps"]["attached"])


def enforcers(model: Manifest) -> dict[str, str]:
    return {row["name"]: row["enforcedBy"] for row in model["status"]["stages"] if row.get("enforcedBy")}


def message(space: Space, kind: str) -> str:
    return str(space.condition(NAME, kind)["message"])


def test_time_slicing_over_dra_needs_no_gate_and_no_configuration(stage: Space, cluster: Cluster) -> None:
    cluster.set_gpus(Gpus(2, "h100-80gb"))
    applied(stage, sharing(puppets(), strategy="TimeSlicing"))
    model = ready(stage)
    assert model["status"]["sharing"] == "TimeSlicing/DRA"
    [claim] = claims(stage).values()
    assert "config" not in claim["spec"]["devices"]
    found = gpus_of(stage)
    assert found["thinker"] == found["talker"] == [model["status"]["gpus"][0]["uuid"]]
    assert not mps_of(stage, "thinker")
    assert "MPS" not in enforcers(model).values()
    assert "ShareNotEnforced" in message(stage, "Accepted")


def test_a_time_slice_needs_its_gate_which_is_named_and_turned_on_is_all_it_takes(
    stage: Space, cluster: Cluster
) -> None:
    cluster.set_gpus(Gpus(2, "h100-80gb"))
    applied(stage, sharing(puppets(), strategy="TimeSlicing", interval="Long"))
    refused = stage.wait(
        "the gate is named",
        lambda: (c := stage.condition(NAME, "SharingReady")).get("reason") == "TimeSlicingUnavailable" and c,
        90,
    )
    assert "feature gate TimeSlicingSettings" in refused["message"]
    assert stage.condition(NAME, "Ready")["reason"] == "TimeSlicingUnavailable"
    cluster.set_gpus(Gpus(2, "h100-80gb", {"TimeSlicingSettings": True}))
    ready(stage, seconds=180)
    [claim] = claims(stage).values()
    [config] = claim["spec"]["devices"]["config"]
    assert config["opaque"]["parameters"]["sharing"] == {
        "strategy": "TimeSlicing",
        "timeSlicingConfig": {"interval": "Long"},
    }


def test_mps_beside_consumable_shares_is_named(stage: Space, cluster: Cluster) -> None:
    cluster.set_gpus(Gpus(2, "h100-80gb", {"MPSSupport": True, "ConsumableShares": True}))
    applied(stage, puppets())
    refused = stage.wait(
        "the gate is named",
        lambda: (c := stage.condition(NAME, "SharingReady")).get("reason") == "MpsUnavailable" and c,
        90,
    )
    assert "turn off the feature gate ConsumableShares" in refused["message"]


def test_without_sharing_each_stage_has_a_gpu_of_its_own(stage: Space, cluster: Cluster) -> None:
    applied(stage, sharing(puppets(APART), strategy="None"))
    model = ready(stage)
    assert model["status"]["sharing"] == "None/DRA"
    found = gpus_of(stage)
    assert len({*found["thinker"], *found["talker"]}) == 2
    assert not mps_of(stage, "thinker")


def test_whole_gpus_of_the_device_plugin(stage: Space, cluster: Cluster) -> None:
    offered(cluster, 2)
    applied(stage, sharing(puppets(APART)))
    model = ready(stage)
    assert model["status"]["sharing"] == "None/DevicePlugin"
    assert claims(stage) == {}
    found = gpus_of(stage)
    assert len({*found["thinker"], *found["talker"]}) == 2
    assert {row["node"] for row in model["status"]["gpus"]} == {pod["spec"]["nodeName"] for pod in pods(stage).values()}


@pytest.mark.parametrize(("config", "strategy"), [("time-slicing", "TimeSlicing"), ("mps", "MPS")])
def test_stages_share_the_only_gpu_of_a_device_plugin_s_node(
    stage: Space, cluster: Cluster, config: str, strategy: str
) -> None:
    offered(cluster, sharing=config, replicas=2, rename=config == "mps")
    applied(stage, sharing(puppets(HALVES), strategy=strategy))
    model = ready(stage)
    assert model["status"]["sharing"] == f"{strategy}/DevicePlugin"
    found = gpus_of(stage)
    assert found["thinker"] == found["talker"]
    assert len(found["thinker"]) == 1
    assert mps_of(stage, "thinker") is (strategy == "MPS")
    resource = "nvidia.com/gpu.shared" if config == "mps" else "nvidia.com/gpu"
    for process in ("thinker", "talker"):
        limits = pods(stage)[f"0-{process}"]["spec"]["containers"][0]["resources"]["limits"]
        assert limits == {resource: "1"}
    if strategy == "MPS":
        assert enforcers(model) == {"thinker": "MPS", "talker": "MPS"}


def test_shares_above_the_plugin_s_equal_parts_are_refused(stage: Space, cluster: Cluster) -> None:
    offered(cluster, sharing="mps", replicas=4)
    applied(stage, sharing(puppets(HALVES), strategy="MPS"))
    refused = stage.wait(
        "the refusal", lambda: (c := stage.condition(NAME, "Accepted")).get("status") == "False" and c, 60
    )
    assert refused["reason"] == "BudgetExceeded"
    assert "thinker needs 31.9Gi of GPU 0" in refused["message"]
    assert pods(stage) == {}


def test_the_whole_pipeline_in_one_pod_has_a_gpu_of_the_device_plugin(stage: Space, cluster: Cluster) -> None:
    offered(cluster, 2)
    one = [{"name": name, "process": "pipeline"} for name in ("preprocessing", "thinker", "talker", "decode")]
    applied(stage, sharing(puppets(one)))
    model = ready(stage)
    assert model["status"]["sharing"] == "None/DevicePlugin"
    assert set(pods(stage)) == {"0-pipeline", "0--front"}
    assert len(model["status"]["gpus"]) == 1


def test_what_no_node_offers_is_named_beside_what_is_there_and_waited_for(stage: Space, cluster: Cluster) -> None:
    offered(cluster, sharing="time-slicing", replicas=4, rename=True)
    applied(stage, sharing(puppets(HALVES), strategy="MPS"))
    lacking = stage.wait(
        "the status says so",
        lambda: (c := stage.condition(NAME, "Scheduled")).get("reason") == "ResourceNotAdvertised" and c,
        60,
    )
    assert "nvidia.com/gpu.shared (time-slicing; 79.6Gi" in lacking["message"]
    offered(cluster, sharing="mps", replicas=2)
    ready(stage, seconds=180)
