"""What the starting order is for: engines that measure their GPU find the memory that their shares leave, every time;
the same pods without their gates measure each other. The figures are in the proportions of vllm-project/vllm#55827."""

from __future__ import annotations

import json
import re
import time

import pytest

from e2e.cases.conftest import Manifest, Space, ours
from e2e.cases.puppets import NAME, applied, env, pods, puppets, ready
from e2e.cluster import external_kubeconfig

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(external_kubeconfig() is not None, reason="needs the ledger of invented GPUs"),
]

SCALE = 81559 / 32607
"""From the report's card, an RTX 5090, to the invented ones."""
STEP = env(PUPPET_READY_AFTER="2")
"""Seconds that each step of an engine takes."""
SIDE_BY_SIDE = env(PUPPET_READY_AFTER="10")
"""Longer than two pods need to come up together, on a busy machine too."""


def engines(first: str = "35%", second: str = "20%") -> Manifest:
    """Two engines of one GPU that nothing but their own measurements limits."""
    sizes = {"thinker": (first, 6.03, 0.395), "talker": (second, 2.88, 0.668)}
    return puppets(
        [
            {
                "name": name,
                "gpuMemory": share,
                "env": [*STEP, *env(PUPPET_SIZES=f"{weights * SCALE:.3f} {activations * SCALE:.3f}")],
            }
            for name, (share, weights, activations) in sizes.items()
        ],
        gpus={"card": "h100-80gb", "sharing": {"strategy": "TimeSlicing"}},
    )


def kv_cache(space: Space, pod: str) -> float:
    """GiB, as the engine measured."""
    found = re.search(r"kvCacheGiB (-?[\d.]+)", space.on.kubectl("logs", pod, "-n", space.name))
    assert found is not None
    return float(found[1])


def test_engines_that_measure_find_what_their_shares_leave_and_without_gates_do_not(stage: Space) -> None:
    began = time.time()
    applied(stage, engines())
    model = ready(stage)
    assert kv_cache(stage, f"{NAME}-0-thinker") == pytest.approx(4.72 * SCALE, abs=0.15)
    assert kv_cache(stage, f"{NAME}-0-talker") == pytest.approx(2.82 * SCALE, abs=0.15)
    [uuid] = {row["uuid"] for row in model["status"]["gpus"]}
    assert not ours().gpu_memory(began)[uuid].refusals
    naive = [without_order(pod) for name, pod in pods(stage).items() if name in ("0-thinker", "0-talker")]
    [claim] = stage.on.items("resourceclaims", stage.name)
    stage.on.kubectl("delete", "omnimodel", NAME, "-n", stage.name, "--cascade=foreground")
    by_hand = {"apiVersion": claim["apiVersion"], "kind": "ResourceClaim", "metadata": {"name": f"{NAME}-0"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [{**by_hand, "spec": claim["spec"]}, *naive]}
    stage.on.kubectl("apply", "-n", stage.name, "-f", "-", stdin=json.dumps(listed))
    stage.wait("one of them fails", lambda: "71" in ended(stage), 120)


def without_order(pod: Manifest) -> Manifest:
    """The same pod, applied by hand: nobody orders it, and it ends for good."""
    meta, spec = pod["metadata"], pod["spec"]
    for key in ("nodeName", "serviceAccount", "serviceAccountName", "schedulingGates", "tolerations", "priority"):
        spec.pop(key, None)
    spec["restartPolicy"] = "Never"
    slow = {row["name"]: row for row in SIDE_BY_SIDE}
    for container in spec["containers"]:
        container["env"] = [slow.get(row["name"], row) for row in container["env"]]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": meta["name"], "annotations": meta["annotations"]},
        "spec": spec,
    }


def ended(space: Space) -> set[str]:
    """Exit codes."""
    states = [status["state"] for pod in space.pods() for status in pod["status"].get("containerStatuses") or []]
    return {str(state["terminated"]["exitCode"]) for state in states if "terminated" in state}
