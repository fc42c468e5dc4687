"""An update restarts what changed and nothing else, and never asks for more GPU memory than there is."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pytest

from e2e.cases.conftest import Manifest, Space, ours
from e2e.cases.puppets import NAME, PROCESSES, applied, changed, claims, env, pods, puppets, ready, since, uids
from e2e.cluster import external_kubeconfig

pytestmark = pytest.mark.node

ALL = frozenset({*(f"0-{process}" for process in PROCESSES), "0--front"})
STAGES = ALL - {"0--front"}


def updated(space: Space, manifest: Manifest) -> set[str]:
    """Apply; the pods that were replaced when the new generation is Ready."""
    before = uids(pods(space))
    applied(space, manifest)
    ready(space)
    return changed(before, uids(pods(space)))


def test_each_kind_of_update_restarts_what_it_must(stage: Space) -> None:
    applied(stage, puppets())
    ready(stage)
    first = uids(claims(stage))

    labelled = puppets()
    labelled["metadata"]["labels"] = {"team": "speech"}
    assert updated(stage, labelled) == set(), "labels of the OmniModel"

    arguments: list[Manifest] = [{"name": "talker", "engineArgs": {"max_running_requests": 4}}]
    assert updated(stage, puppets(arguments)) == {"0-talker"}, "engineArgs of one stage"

    variables = [{**arguments[0], "env": env(A="b")}]
    assert updated(stage, puppets(variables)) == {"0-talker"}, "env of one stage"

    resources = [*variables, {"name": "decode", "resources": {"requests": {"cpu": "10m"}}}]
    assert updated(stage, puppets(resources)) == {"0-decode"}, "resources of one stage"
    assert uids(claims(stage)) == first, "none of these needs another claim"

    on_two = [*resources, {"name": "talker", **variables[0], "gpus": [1]}]
    assert updated(stage, puppets(on_two)) >= STAGES, "another number of slots is another claim"
    assert uids(claims(stage)) != first


def test_the_budget_holds_while_stages_are_replaced(stage: Space) -> None:
    """60 + 20 becomes 20 + 60: each new share fits beside the other's new one only."""
    began = time.time()
    applied(stage, puppets())
    ready(stage)
    applied(stage, puppets([{"name": "thinker", "gpuMemory": "20%"}, {"name": "talker", "gpuMemory": "60%"}]))
    ready(stage)
    [uuid] = {row["uuid"] for row in stage.model(NAME)["status"]["gpus"]}
    shares = {row["name"]: row["gpuMemory"] for row in stage.model(NAME)["status"]["stages"] if "slots" in row}
    assert shares == {"thinker": "20%", "talker": "60%"}
    if external_kubeconfig() is None:
        use = ours().gpu_memory(began)[uuid]
        assert not use.refusals
        assert 0.79 < use.peak / 81559 / 2**20 <= 0.80


def test_rapid_edits_coalesce_to_the_last(stage: Space) -> None:
    applied(stage, puppets())
    ready(stage)
    before = uids(pods(stage))
    for number in range(5):
        applied(stage, puppets([{"name": "talker", "env": env(EDIT=str(number))}]))
    ready(stage)
    found = pods(stage)
    assert changed(before, uids(found)) == {"0-talker"}
    told = {each["name"]: each.get("value") for each in found["0-talker"]["spec"]["containers"][0]["env"]}
    assert told["EDIT"] == "4"


def test_a_refused_update_leaves_the_running_one_and_says_both(stage: Space) -> None:
    applied(stage, puppets())
    ready(stage)
    before = uids(pods(stage))
    applied(stage, puppets([{"name": "talker", "gpuMemory": "41%"}]))

    def refusal() -> Any:
        row = stage.condition(NAME, "Accepted")
        return row if row["status"] == "False" else None

    refused = stage.wait("the refusal", refusal, 30)
    assert refused["reason"] == "BudgetExceeded"
    assert "101% of 100%" in refused["message"]
    said = stage.condition(NAME, "Ready")
    assert "Generation 1 is left running" in said["message"]
    time.sleep(2)
    after = pods(stage)
    assert uids(after) == before
    assert all(pod["status"]["containerStatuses"][0]["ready"] for pod in after.values())
    applied(stage, puppets())
    ready(stage)
    assert uids(pods(stage)) == before, "back to what ran: nothing restarts"


@pytest.mark.skipif(external_kubeconfig() is not None, reason="gives an image of the node another name")
def test_another_image_replaces_every_pod_and_the_stages_start_in_order(stage: Space) -> None:
    slow = [{"name": name, "env": env(PUPPET_READY_AFTER="2")} for name in ("thinker", "talker")]
    applied(stage, puppets(slow))
    ready(stage)
    first = uids(claims(stage))
    other = stage.on.images.puppet.replace(":dev", ":other")
    node = ours()
    tag = ("--namespace=k8s.io", "images", "tag", "--force", stage.on.images.puppet, other)
    subprocess.run(node.inside(node.programs["ctr"], *tag), check=True, capture_output=True)
    assert updated(stage, puppets(slow, image=other)) == ALL
    assert uids(claims(stage)) == first
    found = pods(stage)
    assert since(found["0-talker"], "PodScheduled") >= since(found["0-thinker"], "Ready")
