"""What kubelet says in events alone reaches the status. The test says what kubelet would."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.api.conftest import NODE, Api, wait_for
from tests.api.test_operator import allocate, condition, create, declared

pytestmark = pytest.mark.api

NO_GATE = "NodePrepareResources failed: error validating GPU config: unknown GPU sharing strategy: MPS"


def say(api: Api, pod: dict[str, Any], kind: str, reason: str, message: str, at: str) -> None:
    meta = pod["metadata"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{reason.lower()}"},
        "involvedObject": {"kind": "Pod", "name": meta["name"], "namespace": api.namespace, "uid": meta["uid"]},
        "source": {"component": "kubelet", "host": NODE},
        "type": kind,
        "reason": reason,
        "message": message,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    api.call("POST", f"/api/v1/namespaces/{api.namespace}/events", event)


def test_a_driver_without_the_gate_for_mps_shows_in_the_status(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    create(api, declared("tiny-omni"))
    first = "tiny-omni-0-thinker"
    wait_for("its gate opens", lambda: (p := api.get("pods", first)) and not p["spec"].get("schedulingGates"))
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": first}, "target": target}
    api.call("POST", f"{api.path('pods', first)}/binding", binding)
    allocate(api, "tiny-omni-0")
    pod = api.get("pods", first)
    say(api, pod, "Normal", "Pulling", "an image", "2026-11-29T11:00:00Z")
    say(api, pod, "Warning", "FailedPrepareDynamicResources", NO_GATE, "2026-11-29T12:00:00Z")
    sharing = wait_for(
        "MPS is said to be unavailable",
        lambda: (c := condition(api, "tiny-omni", "SharingReady")).get("reason") == "MpsUnavailable" and c,
        40,
    )
    assert "feature gate MPSSupport" in sharing["message"]
    assert condition(api, "tiny-omni", "Ready")["reason"] == "MpsUnavailable"
    say(api, pod, "Normal", "Created", "a container", "2026-11-29T13:00:00Z")
    wait_for(
        "it goes when kubelet got further",
        lambda: condition(api, "tiny-omni", "SharingReady")["reason"] == "Starting",
        40,
    )
