"""Which container of a pod is the operator's, whoever added others, and what keeps a pod from running."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.api import names
from omni_operator.planning.cluster import remembered
from omni_operator.planning.containers import own_name, own_status, unhealthy_gpus, waits_for
from omni_operator.planning.layout import DevicePlugin


def status(name: str, reason: str = "", message: str = "") -> dict[str, Any]:
    waiting = {"waiting": {"reason": reason, "message": message}} if reason else {}
    return {"name": name, "state": waiting or {"running": {}}}


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), component: str = "stage") -> dict[str, Any]:
    labels = {names.COMPONENT_LABEL: component} if component else {}
    found = {"containerStatuses": [*containers], "initContainerStatuses": [*init]}
    return {"metadata": {"labels": labels}, "status": found}


def test_ours_is_found_among_others_that_kubelet_sorts_before_it() -> None:
    seen = pod(status("envoy"), status("istio-proxy"), status("stage"))
    assert own_name(seen) == "stage"
    assert own_status(seen)["name"] == "stage"
    assert own_status(pod(status("a"), status("front"), component="front"))["name"] == "front"


def test_without_its_label_a_pod_of_one_container_is_still_read() -> None:
    assert own_status(pod(status("stage"), component=""))["name"] == "stage"
    assert own_status(pod(status("envoy"), status("stage"), component="")) == {}
    assert own_status({"metadata": {}}) == {}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (pod(status("envoy"), status("stage")), ""),
        (pod(status("stage", "ContainerCreating")), "ContainerCreating"),
        (pod(status("stage", "ImagePullBackOff", "no such image")), "ImagePullBackOff: no such image"),
        (pod(status("envoy", "ErrImagePull", "no"), status("stage")), "ErrImagePull: container envoy: no"),
        (pod(status("stage", "PodInitializing"), init=(status("fetch", "CrashLoopBackOff"),)),
         "CrashLoopBackOff: container fetch"),
        (pod(status("envoy", "PodInitializing"), status("stage", "PodInitializing")), "PodInitializing"),
    ],
)  # fmt: skip
def test_what_it_waits_for_names_the_container_that_is_wrong(seen: dict[str, Any], words: str) -> None:
    assert waits_for(seen) == words


GPU_POD = {names.DEVICE_PLUGIN_ANNOTATION: remembered(DevicePlugin(resource="nvidia.com/gpu.shared"))}


@pytest.mark.parametrize(
    ("resource", "annotations", "found"),
    [
        ("claim:gpus/slot0", {}, ["gpu-0: an Xid"]),
        ("claim:gpus", {}, ["gpu-0: an Xid"]),
        ("claim:nic/port", {}, []),
        ("nvidia.com/gpu.shared", GPU_POD, ["gpu-0: an Xid"]),
        ("nvidia.com/gpu.shared", {}, []),
        ("rdma/hca", GPU_POD, []),
    ],
)
def test_only_gpus_of_its_slots_count_as_a_stage_s_unhealthy_devices(
    resource: str, annotations: dict[str, str], found: list[str]
) -> None:
    device = {"resourceID": "gpu-0", "health": "Unhealthy", "message": "an\n Xid"}
    row = {"name": resource, "resources": [device, {"resourceID": "gpu-1", "health": "Healthy"}]}
    seen = pod({**status("stage"), "allocatedResourcesStatus": [row]}, status("envoy"))
    seen["metadata"]["annotations"] = annotations
    assert list(unhealthy_gpus(seen)) == found
