"""What users add to pods, on a real node: sidecars and init containers run beside stages that share a GPU, and neither
the order, nor the shares, nor what the operator and its command line read of a pod, is confused by them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from e2e.cases.conftest import Space
from e2e.cases.puppets import NAME, applied, pods, puppets, ready, seen_by, since
from omni_operator.planning.containers import own_status

pytestmark = pytest.mark.node

BUSYBOX = "localhost/omni-busybox:dev"
TEMPLATE = {
    "metadata": {"labels": {"team": "speech"}, "annotations": {"note": "for people"}},
    "spec": {
        "volumes": [{"name": "data", "emptyDir": {}}],
        "initContainers": [
            {
                "name": "fetch",
                "image": BUSYBOX,
                "command": ["sh", "-c", "echo fetched > /data/file"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "containers": [
            # Kubelet sorts containers by name: this one comes before the operator's own.
            {"name": "agent", "image": BUSYBOX, "command": ["sh", "-c", "echo agent speaks; exec sleep 3600"]},
            {
                "name": "stage",
                "env": [{"name": "GREETING", "value": "hello"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
        ],
    },
}


def test_sidecars_run_beside_stages_and_confuse_nobody(stage: Space) -> None:
    applied(stage, puppets(podTemplate=TEMPLATE))
    model, found = ready(stage), pods(stage)
    assert [row["name"] for row in found["0-thinker"]["status"]["containerStatuses"]] == ["agent", "stage"]
    assert own_status(found["0-thinker"])["name"] == "stage"
    assert since(found["0-talker"], "PodScheduled") >= since(found["0-thinker"], "Ready"), "it came before its turn"
    uuids = {uuid for row in model["status"]["stages"] for uuid in row.get("gpuUuids") or ()}
    assert len(uuids) == 1, "both share one GPU"
    assert seen_by(stage, f"{NAME}-0-thinker", "cat", "/data/file") == "fetched"
    assert found["0--front"]["metadata"]["labels"]["team"] == "speech"


def test_logs_are_those_of_the_stage(stage: Space) -> None:
    applied(stage, puppets(podTemplate=TEMPLATE))
    ready(stage)
    command = [sys.executable, "-m", "omni_operator.cli", "logs", NAME, "thinker", "-n", stage.name]
    done = subprocess.run(
        [*command, "--kubeconfig", str(stage.on.kubeconfig)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "agent speaks" in stage.on.kubectl("logs", "-n", stage.name, f"{NAME}-0-thinker", "-c", "agent")
    assert "agent speaks" not in done.stdout


def test_a_sidecar_that_is_not_there_is_named(stage: Space) -> None:
    missing = {"name": "agent", "image": "localhost/nothing:1", "imagePullPolicy": "Never"}
    applied(stage, puppets(podTemplate={"spec": {"containers": [missing]}}))
    words = "ErrImageNeverPull: container agent"
    stage.wait("it is told", lambda: stage.stages(NAME).get("thinker", {}).get("reason", "").startswith(words), 60)
