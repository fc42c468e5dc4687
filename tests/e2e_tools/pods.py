"""Pods for the tests of a real node, and what is asked of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from e2e.cluster import Cluster, external_kubeconfig
from e2e.images.busybox import BUSYBOX_IMAGE

NAME = "tools-test"
"""Of the cluster that these tests share, so that a developer's own is left alone."""

on_our_node = [
    pytest.mark.node,
    pytest.mark.xdist_group("tools-node"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a node needs root"),
    pytest.mark.skipif(
        external_kubeconfig() is not None, reason="these test our own node, and KUBECONFIG names another"
    ),
]


def pod(name: str, script: str, request: str | None = None, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "c", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", script]}
    more: dict[str, Any] = {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", **spec}
    if request is not None:
        more["resourceClaims"] = [{"name": "gpus", "resourceClaimName": "m-0"}]
        container["resources"] = {"claims": [{"name": "gpus", "request": request} if request else {"name": "gpus"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], **more},
    }


def ready(cluster: Cluster, *names: str) -> None:
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=60s", *(f"pod/{name}" for name in names))


def event_of(cluster: Cluster, name: str, reason: str) -> str:
    """The message of the first event of this reason about a pod."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        fields = f"--field-selector=involvedObject.name={name},reason={reason}"
        events = json.loads(cluster.kubectl("get", "events", fields, "-o", "json"))["items"]
        if events:
            return str(events[0]["message"])
        time.sleep(0.2)
    raise AssertionError(f"no event {reason} about {name}")


def in_pod(cluster: Cluster, name: str, script: str) -> str:
    """What a script prints in a pod."""
    return cluster.kubectl("exec", name, "--", "sh", "-c", script).strip()


def apply(cluster: Cluster, *manifests: dict[str, Any]) -> None:
    """Apply manifests, in their order."""
    for each in manifests:
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(each))


def until(what: str, there: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What `there` gives once it is something true."""
    deadline = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found
