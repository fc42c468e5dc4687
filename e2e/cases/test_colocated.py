"""A layout of five GPU stages on one card is placed in order; an overbooked one is refused, with reasons."""

from __future__ import annotations

import time
from typing import Any

import pytest

from e2e.cases.conftest import CHILDREN, Space, held
from e2e.deploy import NAMESPACE

pytestmark = pytest.mark.node

GPU_STAGES = {"image_encoder", "audio_encoder", "thinker", "talker_ar", "code2wav"}


def gated(space: Space) -> set[str]:
    return {
        pod["metadata"]["labels"]["omnimodel.io/process"] for pod in space.pods() if pod["spec"].get("schedulingGates")
    }


def test_five_stages_of_one_h100_start_one_after_another(space: Space) -> None:
    space.apply(held("qwen3-omni-h100-colocated"))
    space.wait(
        "the thinker loads", lambda: space.stages("qwen3-omni").get("thinker", {}).get("state") == "Starting", 60
    )
    time.sleep(3)
    stages = space.stages("qwen3-omni")
    assert gated(space) == GPU_STAGES - {"thinker"}
    for name in GPU_STAGES - {"thinker"}:
        assert (stages[name]["state"], stages[name]["reason"][:17]) == ("Gated", "waits for thinker")
    accepted = space.condition("qwen3-omni", "Accepted")
    assert accepted["status"] == "True"
    assert "GPU 0: 94% of 100%" in accepted["message"]
    assert space.condition("qwen3-omni", "Ready")["status"] == "False"
    [claim] = space.on.items("resourceclaims", space.name)
    assert len(claim["status"]["allocation"]["devices"]["results"]) == 1
    assert len(space.pods()) == 8


def test_overbooked_is_refused_with_figures_and_the_fix_and_nothing_is_made(space: Space) -> None:
    space.apply(held("qwen3-omni-h100-overbooked"))
    name = "qwen3-omni-overbooked"
    accepted: dict[str, Any] = space.wait("a verdict", lambda: space.condition(name, "Accepted"), 30)
    assert (accepted["status"], accepted["reason"]) == ("False", "BudgetExceeded")
    for words in ("GPU 0", "104% of 100%", "thinker 88%", "talker_ar 10%", "4% (about 3.2Gi) too many", "to 84%"):
        assert words in accepted["message"]
    time.sleep(2)
    assert space.children() == {kind: [] for kind in CHILDREN}


def test_killing_the_operator_while_pods_start_ends_in_the_same_state(space: Space) -> None:
    for _ in range(3):
        space.apply(held("qwen3-omni-h100-colocated"))
        space.on.kubectl("delete", "pod", "-n", NAMESPACE, "--all", "--grace-period=0", "--force")
        time.sleep(1.5)
    space.wait(
        "the thinker loads", lambda: space.stages("qwen3-omni").get("thinker", {}).get("state") == "Starting", 90
    )
    assert gated(space) == GPU_STAGES - {"thinker"}
    assert {kind: len(found) for kind, found in space.children().items()} == {
        "pods": 8,
        "resourceclaims": 1,
        "services": 2,
        "networkpolicies": 1,
    }
