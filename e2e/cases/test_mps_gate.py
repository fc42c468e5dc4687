"""A driver that does not offer MPS: the status says so and names the gate, and turning it on is all that is needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cases.conftest import INSTANCE, Space, held
from e2e.cluster import Cluster, Gpus, external_kubeconfig, up

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(external_kubeconfig() is not None, reason="changes the gates of the invented GPUs' driver"),
]

NAME = "qwen3-omni"


@pytest.fixture
def cluster(space: Space) -> Iterator[Cluster]:
    """Ours, with the gate off until the case ends."""
    found = up(INSTANCE, Gpus(2, "h100-80gb", {"MPSSupport": False}))
    yield found
    found.set_gpus(Gpus(2, "h100-80gb", {"MPSSupport": True}))


def test_without_its_gate_mps_is_unavailable_and_with_it_the_stage_starts(space: Space, cluster: Cluster) -> None:
    space.apply(held("qwen3-omni-h100-colocated"))
    space.wait(
        "the gate is named",
        lambda: space.condition(NAME, "SharingReady").get("reason") == "MpsUnavailable",
        90,
    )
    sharing, ready = (space.condition(NAME, kind) for kind in ("SharingReady", "Ready"))
    assert (ready["status"], ready["reason"]) == ("False", "MpsUnavailable")
    for words in ("feature gate MPSSupport", "TimeSlicing"):
        assert words in sharing["message"]
    assert space.stages(NAME)["thinker"]["state"] == "Failed"
    assert space.stages(NAME)["talker_ar"]["state"] == "Gated"
    cluster.set_gpus(Gpus(2, "h100-80gb", {"MPSSupport": True}))
    space.wait("the thinker loads", lambda: space.stages(NAME)["thinker"]["state"] == "Starting", 180)
    space.wait(
        "nothing is said of MPS any more",
        lambda: space.condition(NAME, "SharingReady").get("reason") == "Starting",
        60,
    )
