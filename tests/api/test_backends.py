"""By which way GPUs are asked for, with a real API server: the nodes' own words decide."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.conftest import DEVICE_CLASS, Api, wait_for
from tests.api.test_operator import condition, create, declared

pytestmark = pytest.mark.api

GPU_NODE = "gpu-node"


def gpu_node(resource: str, parts: str, **labels: str) -> dict[str, Any]:
    found = {f"nvidia.com/gpu.{key.replace('_', '-')}": value for key, value in labels.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": GPU_NODE, "labels": found},
        "status": {"allocatable": {resource: parts}, "capacity": {resource: parts}},
    }


@pytest.fixture
def nothing(api: Api) -> Iterator[Api]:
    """A cluster that offers no GPU in any way."""
    api.must("delete", "deviceclass", "gpu.nvidia.com")
    yield api
    api.must("delete", "node", GPU_NODE, "--ignore-not-found")
    assert api.apply(DEVICE_CLASS).returncode == 0


def join(api: Api) -> None:
    """A node of one H100 in two MPS parts."""
    node = gpu_node("nvidia.com/gpu.shared", "2", count="1", replicas="2", memory="81559", sharing_strategy="mps")
    api.call("POST", "/api/v1/nodes", node)
    api.call("PATCH", f"/api/v1/nodes/{GPU_NODE}/status", {"status": node["status"]}, "application/merge-patch+json")


@pytest.fixture
def plugin_only(nothing: Api) -> Api:
    """A cluster without DRA's class, and with such a node."""
    join(nothing)
    return nothing


def halves(**sharing: str) -> dict[str, Any]:
    manifest = declared("tiny-omni")
    manifest["spec"]["gpus"]["sharing"] = sharing
    manifest["spec"]["stages"][0]["gpuMemory"] = "40%"
    return manifest


def test_auto_takes_the_device_plugin_where_it_alone_is_there(
    plugin_only: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    api = plugin_only
    create(api, halves())
    pod = wait_for("the thinker's pod", lambda: api.get("pods", "tiny-omni-0-thinker"))
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu.shared": "1"}
    assert api.get("resourceclaims") == []
    sharing = wait_for("a status", lambda: (api.get("omnimodels", "tiny-omni").get("status") or {}).get("sharing"))
    assert sharing == "MPS/DevicePlugin"


def test_what_no_node_offers_is_named_beside_what_is_there(
    plugin_only: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    create(plugin_only, halves(strategy="TimeSlicing"))
    scheduled = wait_for(
        "the status says so",
        lambda: (c := condition(plugin_only, "tiny-omni", "Scheduled")).get("reason") == "ResourceNotAdvertised" and c,
    )
    assert "nvidia.com/gpu.shared (mps; 79.6Gi; on gpu-node)" in scheduled["message"]


def test_a_way_that_comes_later_is_taken_though_no_event_tells_of_it(
    nothing: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    create(nothing, halves())
    wait_for(
        "nothing is offered",
        lambda: condition(nothing, "tiny-omni", "Scheduled").get("reason") == "ResourceNotAdvertised",
    )
    join(nothing)
    model = lambda: (nothing.get("omnimodels", "tiny-omni").get("status") or {}).get("sharing")  # noqa: E731
    wait_for("the device plugin is taken", lambda: model() == "MPS/DevicePlugin", 60)
