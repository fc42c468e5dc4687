"""Replicas through the scale subresource: a claim and a group each, the unready go first; models wait for a card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cases.conftest import GPUS, Space, ours
from e2e.cases.puppets import NAME, applied, claims, order, pods, puppets, ready, uids
from e2e.cluster import Gpus, external_kubeconfig

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(external_kubeconfig() is not None, reason="changes how many invented GPUs there are"),
]


@pytest.fixture
def cards(stage: Space) -> Iterator[Space]:
    """Three GPUs, until the case ends."""
    cluster = ours()
    cluster.set_gpus(Gpus(3, GPUS.profile, GPUS.gates))
    yield stage
    stage.on.kubectl("delete", "omnimodels", "--all", "-n", stage.name, "--cascade=foreground", "--timeout=60s")
    cluster.set_gpus(GPUS)


def scale(space: Space, replicas: int) -> None:
    space.on.kubectl("scale", "omnimodel", NAME, f"--replicas={replicas}", "-n", space.name)


def indexes(space: Space) -> set[str]:
    return {name.split("-")[0] for name in pods(space)}


def test_three_replicas_scale_up_and_down(cards: Space) -> None:
    applied(cards, puppets())
    ready(cards)
    first = uids(pods(cards))
    scale(cards, 3)
    model = ready(cards)
    found = pods(cards)
    assert {name: uid for name, uid in uids(found).items() if name.startswith("0-")} == first
    assert sorted(claims(cards)) == [f"{NAME}-{index}" for index in range(3)]
    assert len({row["uuid"] for row in model["status"]["gpus"]}) == 3, "a card each"
    status = model["status"]
    assert (status["replicas"], status["readyReplicas"]) == (3, 3)
    assert (
        cards.on.kubectl(
            "get", "omnimodel", NAME, "-n", cards.name, "--subresource=scale", "-o", "jsonpath={.status.replicas}"
        )
        == "3"
    )
    before = uids(found)
    scale(cards, 1)
    cards.wait("two replicas go", lambda: len(claims(cards)) == 1 and len(pods(cards)) == 5, 60)
    after = uids(pods(cards))
    assert after.items() <= before.items()
    ready(cards)
    assert cards.model(NAME)["status"]["replicas"] == 1


def test_the_unready_replica_goes_first(cards: Space) -> None:
    applied(cards, puppets(replicas=3))
    ready(cards)
    before = uids(pods(cards))
    order(cards, f"{NAME}-1-talker", "hang")
    cards.wait("replica 1 is not ready", lambda: cards.model(NAME)["status"]["readyReplicas"] == 2, 60)
    scale(cards, 2)
    cards.wait("one replica goes", lambda: len(indexes(cards)) == 2, 60)
    assert indexes(cards) == {"0", "2"}
    ready(cards)
    assert uids(pods(cards)).items() <= before.items()


def test_two_models_want_the_last_card_and_the_one_that_waits_says_for_what(stage: Space) -> None:
    cluster = ours()
    cluster.set_gpus(Gpus(1, GPUS.profile, GPUS.gates))
    try:
        applied(stage, puppets(name="first"))
        ready(stage, "first")
        applied(stage, puppets(name="second"))
        told = stage.wait(
            "the second says that it waits",
            lambda: (row := stage.condition("second", "Scheduled")).get("reason") == "WaitingForGpu" and row,
            30,
        )
        for words in ("second-0-thinker waits for 1 GPU of 81559Mi or more", "cannot allocate all claims"):
            assert words in told["message"]
        assert stage.condition("second", "Ready")["status"] == "False"
        assert stage.stages("second")["talker"]["state"] == "Gated"
        stage.on.kubectl("delete", "omnimodel", "first", "-n", stage.name)
        ready(stage, "second")
    finally:
        stage.on.kubectl("delete", "omnimodels", "--all", "-n", stage.name, "--cascade=foreground", "--timeout=60s")
        cluster.set_gpus(GPUS)
