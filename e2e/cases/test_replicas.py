"""Replicas through the scale subresource: a claim and a group each, the unready go first; models wait for a card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cases.conftest import GPUS, Manifest, Space, new_space, ours
from e2e.cases.puppets import NAME, applied, claims, order, pods, puppets, ready, uids
from e2e.cluster import Gpus, external_kubeconfig
from e2e.deploy import Target

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(external_kubeconfig() is not None, reason="changes how many invented GPUs there are"),
]


def offered(count: int) -> None:
    ours().set_gpus(Gpus(count, GPUS.profile, GPUS.gates))


@pytest.fixture
def cards(operator: Target) -> Iterator[Space]:
    """A namespace; the node has as many GPUs as ever when the case ends."""
    with new_space(operator) as space:
        yield space
    offered(GPUS.count)


def scale(space: Space, replicas: int) -> None:
    space.on.kubectl("scale", "omnimodel", NAME, f"--replicas={replicas}", "-n", space.name)


def indexes(space: Space) -> set[str]:
    return {name.split("-")[0] for name in pods(space)}


def test_three_replicas_scale_up_and_down_the_unready_first(cards: Space) -> None:
    offered(3)
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
    order(cards, f"{NAME}-1-talker", "exit-lost\nnever-ready")
    cards.wait("replica 1 is not ready", lambda: cards.model(NAME)["status"]["readyReplicas"] == 2, 60)
    scale(cards, 2)
    cards.wait("one replica goes", lambda: len(indexes(cards)) == 2, 60)
    assert indexes(cards) == {"0", "2"}, "the unready one goes first"
    scale(cards, 1)
    cards.wait("two replicas are gone", lambda: len(claims(cards)) == 1 and len(pods(cards)) == 5, 60)
    ready(cards)
    assert uids(pods(cards)).items() <= before.items()
    assert cards.model(NAME)["status"]["replicas"] == 1


def test_two_models_want_the_last_card_and_the_one_that_waits_says_for_what(cards: Space) -> None:
    offered(1)
    applied(cards, puppets(name="first"))
    ready(cards, "first")
    applied(cards, puppets(name="second"))

    def waits() -> Manifest | None:
        row = cards.condition("second", "Scheduled")
        return row if row.get("reason") == "WaitingForGpu" else None

    told = cards.wait("the second says that it waits", waits, 30)
    for words in ("second-0-thinker waits for 1 GPU of 81559Mi or more", "cannot allocate all claims"):
        assert words in told["message"]
    assert cards.condition("second", "Ready")["status"] == "False"
    assert cards.stages("second")["talker"]["state"] == "Gated"
    cards.on.kubectl("delete", "omnimodel", "first", "-n", cards.name)
    ready(cards, "second")
