"""Sharing is really on: a stage that shares a GPU under MPS is ready only while it is attached, and the status says
what is measured, by whom a share is kept, and which accepted spec runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.cases.conftest import INSTANCE, Space
from e2e.cases.puppets import NAME, applied, changed, env, pods, puppets, ready, seen_by, uids
from e2e.cluster import Cluster, Instance, external_kubeconfig, running

MIB = 2**20
STAGES = {"0-preprocessing", "0-thinker", "0-talker", "0-decode"}

pytestmark = pytest.mark.node


def page(space: Space, stage: str) -> dict[str, Any]:
    """The stage's own /stage."""
    script = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9400/stage').read().decode())"
    found: dict[str, Any] = json.loads(seen_by(space, f"{NAME}-0-{stage}", "python3", "-c", script))
    return found


def test_the_status_says_what_is_measured_and_who_keeps_whom(stage: Space) -> None:
    applied(stage, puppets())
    ready(stage)
    sharing = stage.condition(NAME, "SharingReady")
    assert sharing["status"] == "True"
    assert "each attached to the control daemon of its GPU" in sharing["message"]

    def measured() -> dict[str, Any] | None:
        rows = stage.stages(NAME)
        return rows if all("measuredMemoryBytes" in rows[name] for name in ("thinker", "talker")) else None

    rows = stage.wait("measured memory", measured, 60)
    assert rows["thinker"]["measuredMemoryBytes"] == 48935 * MIB, "60 % of 81,559 MiB, which the puppet takes"
    assert rows["talker"]["measuredMemoryKind"] in ("torch", "resident")
    assert [rows[name].get("enforcedBy") for name in ("thinker", "talker", "decode")] == ["MPS", "MPS", None]
    told = page(stage, "thinker")
    assert told["mps"]["attached"] is True
    assert told["device_uuids"] == rows["thinker"]["gpuUuids"]
    assert page(stage, "decode")["mps"]["attached"] is False
    assert stage.model(NAME)["status"]["revision"] == 1
    kept = stage.on.items("controllerrevisions.apps", stage.name)
    assert [each["revision"] for each in kept] == [1]


@pytest.mark.skipif(external_kubeconfig() is not None, reason="takes the invented GPUs' daemons away")
def test_a_daemon_that_stays_away_restarts_the_group_and_one_that_is_new_serves_it(stage: Space) -> None:
    applied(stage, puppets([{"name": name, "env": env(PUPPET_READY_AFTER="1")} for name in ("thinker", "talker")]))
    ready(stage)
    before = uids(pods(stage))
    node().lose_mps()
    stage.wait("it is not ready", lambda: stage.condition(NAME, "SharingReady").get("status") == "False", 30)
    assert "the control daemon is not there" in page(stage, "thinker")["detail"]
    assert changed(before, uids(pods(stage))) == set(), "for a while it is only not ready"
    stage.wait("the group goes", lambda: stage.model(NAME)["status"].get("groupRestarts"), 60)
    ready(stage)
    assert changed(before, uids(pods(stage))) == STAGES
    [told] = stage.model(NAME)["status"]["groupRestarts"]
    assert "exit code 72" in told["reason"]
    assert "sharing is MPS, but the control daemon is not there" in told["reason"]
    assert page(stage, "thinker")["mps"]["attached"] is True


def node() -> Cluster:
    """The machine's own cluster."""
    found = running(Instance(INSTANCE))
    assert found is not None
    return found
