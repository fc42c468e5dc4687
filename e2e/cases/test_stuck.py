"""Stages that do not come up, or stop answering: who it is and what it waits for is said, and nobody else suffers.

Three OmniModels go wrong side by side, since each has to be waited for.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cases.conftest import GPUS, Manifest, Space, new_space, ours
from e2e.cases.puppets import applied, claims, env, order, pods, puppets, ready, restarts, uids
from e2e.cluster import Gpus, external_kubeconfig
from e2e.deploy import Target

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(external_kubeconfig() is not None, reason="needs four GPUs, which it invents"),
]

NEVER, HELD, HOMELESS, SILENT = "never", "held", "homeless", "silent"


def never() -> Manifest:
    """Its thinker's engine says nothing."""
    hangs: Manifest = {"name": "thinker", "startupTimeout": "8s", "env": env(PUPPET_AT_START="never-ready")}
    return puppets([hangs], NEVER)


def homeless(cpu: str) -> Manifest:
    """Its talker wants this much CPU on the thinker's node."""
    return puppets([{"name": "talker", "resources": {"requests": {"cpu": cpu}}}], HOMELESS)


@pytest.fixture(scope="module")
def trouble(operator: Target) -> Iterator[Space]:
    cluster = ours()
    cluster.set_gpus(Gpus(4, GPUS.profile, GPUS.gates))
    with new_space(operator) as space:
        applied(space, never())
        applied(space, puppets(name=HELD, development={"hold": "loading"}, startupTimeout="8s"))
        applied(space, homeless("999"))
        applied(space, puppets(name=SILENT))
        yield space
    cluster.set_gpus(GPUS)


def started_late(space: Space, model: str) -> bool:
    return "StageStartTimeout" in space.stages(model)["thinker"].get("reason", "")


def silent(row: Manifest) -> Manifest | None:
    return row if "was ready and says nothing any more" in row.get("reason", "") else None


def gate_is_closed(space: Space, model: str) -> None:
    assert space.stages(model)["talker"]["state"] == "Gated"
    assert pods(space, model)["0-talker"]["spec"]["schedulingGates"]


def test_an_engine_that_hangs_at_its_start_is_named_and_ended_and_no_later_gate_opens(trouble: Space) -> None:
    trouble.wait("the thinker's time is over", lambda: started_late(trouble, NEVER), 60)
    row, condition = trouble.stages(NEVER)["thinker"], trouble.condition(NEVER, "Ready")
    assert "was not ready within 8 s" in row["reason"]
    assert (condition["status"], condition["reason"]) == ("False", "StageStartTimeout")
    assert "thinker" in condition["message"]
    trouble.wait("it is tried again", lambda: trouble.stages(NEVER)["thinker"]["restarts"], 60)
    gate_is_closed(trouble, NEVER)


def test_a_container_that_hangs_is_named_and_no_later_gate_opens(trouble: Space) -> None:
    trouble.wait("the thinker's time is over", lambda: started_late(trouble, HELD), 60)
    assert "does not become ready" in trouble.stages(HELD)["thinker"]["reason"]
    assert trouble.condition(HELD, "Ready")["reason"] == "StageStartTimeout"
    gate_is_closed(trouble, HELD)


def test_an_engine_that_was_ready_and_hangs_is_told_and_its_neighbours_stay(trouble: Space) -> None:
    ready(trouble, SILENT)
    before = pods(trouble, SILENT)
    order(trouble, f"{SILENT}-0-talker", "hang")
    trouble.wait("it is not ready", lambda: trouble.stages(SILENT)["talker"]["state"] != "Ready", 90)
    row = trouble.wait("it is said", lambda: silent(trouble.stages(SILENT)["talker"]), 60)
    assert row["state"] == "Failed"
    assert "talker" in trouble.condition(SILENT, "Ready")["message"]
    after = pods(trouble, SILENT)
    assert uids(after) == uids(before)
    assert not any(restarts(after).values())
    assert trouble.stages(SILENT)["thinker"]["state"] == "Ready"


def test_a_group_whose_later_stage_finds_no_room_is_released_and_placed_anew(trouble: Space) -> None:
    trouble.wait("the group is released", lambda: trouble.model(HOMELESS)["status"].get("groupRestarts"), 120)
    [told] = trouble.model(HOMELESS)["status"]["groupRestarts"]
    for words in (
        "talker needs cpu",
        "Insufficient cpu",
        trouble.on.items("nodes", trouble.name)[0]["metadata"]["name"],
    ):
        assert words in told["reason"]
    trouble.wait(
        "its GPU is free", lambda: not claims(trouble)[f"{HOMELESS}-0"].get("status", {}).get("allocation"), 30
    )
    applied(trouble, homeless("10m"))
    ready(trouble, HOMELESS)


def test_what_was_stuck_starts_once_its_cause_is_gone(trouble: Space) -> None:
    applied(trouble, puppets(name=NEVER))
    ready(trouble, NEVER)
