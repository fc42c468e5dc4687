"""How a stage ends decides what restarts: its container, all on its GPUs in order, or nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import pytest

from e2e.cases.conftest import Manifest, Space, ours
from e2e.cases.puppets import (
    NAME,
    PROCESSES,
    applied,
    changed,
    claims,
    env,
    holds,
    order,
    pods,
    puppets,
    ready,
    restarts,
    since,
    uids,
)
from e2e.cluster import external_kubeconfig

pytestmark = pytest.mark.node

FLAPS = "flaps"


def row_says(space: Space, stage: str, *words: str) -> Manifest | None:
    row = space.stages(NAME).get(stage, {})
    return row if all(word in row.get("reason", "") for word in words) else None


def test_what_a_restart_may_cure_restarts_in_place_however_often_and_no_neighbour_does(stage: Space) -> None:
    slow = env(PUPPET_READY_AFTER="4")
    rows = [{"name": name, "env": slow} for name in ("thinker", "talker", "decode")]
    rows[0]["startupTimeout"] = "10s"
    applied(stage, puppets(rows))
    applied(stage, puppets(name=FLAPS))
    ready(stage)
    ready(stage, FLAPS)
    before, flaps_before = uids(pods(stage)), uids(pods(stage, FLAPS))
    order(stage, f"{FLAPS}-0-talker", "exit-lost\nexit-lost\nexit-lost")
    orders = {"thinker": "exit-lost\nnever-ready", "talker": "exit-lost", "decode": "exit-peer-lost"}
    for name, text in orders.items():
        order(stage, f"{NAME}-0-{name}", text)
    for name, words in {
        "talker": ("exit code 73", "the puppet was told to end"),
        "decode": ("exit code 74", "was not taken over"),
        "thinker": ("StageStartTimeout", "exit code 75", "not ready within 10 s"),
    }.items():
        stage.wait(f"the status says how {name} ended", lambda: row_says(stage, name, *words), 40)  # noqa: B023
    ready(stage)
    after = pods(stage)
    assert uids(after) == before
    told = {name: row["restarts"] for name, row in stage.stages(NAME).items()}
    assert told == {"preprocessing": 0, "thinker": 2, "talker": 1, "decode": 1}
    assert restarts(after) == {**{f"0-{name}": count for name, count in told.items()}, "0--front": 0}
    assert not stage.model(NAME)["status"].get("groupRestarts")
    stage.wait("three restarts", lambda: stage.stages(FLAPS)["talker"]["restarts"] == 3, 90)
    ready(stage, FLAPS)
    found = pods(stage, FLAPS)
    assert uids(found) == flaps_before
    assert {name: count for name, count in restarts(found).items() if count} == {"0-talker": 3}


def test_what_a_restart_would_repeat_stays_down_and_says_so_until_it_is_changed(stage: Space) -> None:
    applied(stage, puppets())
    ready(stage)
    before = uids(pods(stage))
    order(stage, f"{NAME}-0-talker", "exit-out-of-budget")
    order(stage, f"{NAME}-0-decode", "exit-bad-config")
    for name, words in {"talker": ("OutOfBudget", "exit code 71"), "decode": ("BadConfig", "exit code 78")}.items():
        row = stage.wait(f"the status says how {name} ended", lambda: row_says(stage, name, *words), 40)  # noqa: B023
        assert row["state"] == "Failed"
        assert "it stays down until its spec changes or its pod is deleted" in row["reason"]
    holds(stage, "nothing restarts", lambda: set(restarts(pods(stage)).values()) == {0}, 15)
    assert uids(pods(stage)) == before
    assert stage.condition(NAME, "Ready")["reason"] in ("OutOfBudget", "BadConfig")
    stage.on.kubectl("delete", "pod", "-n", stage.name, f"{NAME}-0-decode")
    applied(stage, puppets([{"name": "talker", "gpuMemory": "25%"}]))
    ready(stage)
    assert changed(before, uids(pods(stage))) == {"0-talker", "0-decode"}


def test_a_fault_of_the_gpu_restarts_all_on_it_in_order_and_nothing_else(stage: Space) -> None:
    """A fatal CUDA error in replica 0, then a kill under MPS in replica 1."""
    slow = env(PUPPET_READY_AFTER="2")
    applied(stage, puppets([{"name": name, "env": slow} for name in ("thinker", "talker")], replicas=2))
    ready(stage)
    before, claims_before = uids(pods(stage)), uids(claims(stage))
    order(stage, f"{NAME}-0-talker", "exit-cuda-fault")
    restarted(stage, 0, before, "exit code 72", "an illegal memory access")
    if external_kubeconfig() is None:
        found = pods(stage)
        kill(found["1-thinker"])
        restarted(stage, 1, uids(found), "exit code 137", "killed under MPS")
    assert uids(claims(stage)) == claims_before


def kill(pod: Manifest) -> None:
    """SIGKILL to all in the pod's container, as for want of memory."""
    cluster = ours()
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    command = cluster.inside(
        cluster.programs["ctr"], "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", container
    )
    subprocess.run(command, check=True, capture_output=True)


def restarted(space: Space, replica: int, before: Mapping[str, str], *words: str) -> None:
    """The group of one replica restarted, once, in order, for a reason in these words."""

    def told() -> Manifest | None:
        rows = space.model(NAME)["status"].get("groupRestarts") or []
        return next((row for row in rows if row["replica"] == replica), None)

    row = space.wait("the group goes", told, 30)
    ready(space)
    after = pods(space)
    assert changed(before, uids(after)) == {f"{replica}-{process}" for process in PROCESSES}
    assert row["restarts"] == 1
    for word in words:
        assert word in row["reason"]
    assert since(after[f"{replica}-talker"], "PodScheduled") >= since(after[f"{replica}-thinker"], "Ready")
    assert not any(restarts(after).values())
