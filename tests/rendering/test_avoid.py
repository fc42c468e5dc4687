"""A replica that was released prefers another node, and loses nothing else that was rendered for it."""

from __future__ import annotations

from typing import Any

from omni_operator.planning.cluster import Cluster, Surroundings
from omni_operator.planning.rollout import Step
from omni_operator.rendering.avoid import avoiding_nodes
from tests.planning.test_cluster import node, planned, tiny

__all__ = ["tiny"]


def affinities(manifest: dict[str, Any], surroundings: Surroundings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the thinker, as rendered, and as made after a release from `full`."""
    children = planned(manifest, surroundings).rendered.replicas[0]
    step = avoiding_nodes(Step(apply=children), {0: "full"})
    before, after = (
        next(dict(child.manifest) for child in each if child.name.endswith("-thinker"))["spec"].get("affinity", {})
        for each in (children, step.apply)
    )
    return before, after


def avoided(affinity: dict[str, Any]) -> list[str]:
    terms = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    return [field["values"][0] for term in terms for field in term["preference"].get("matchFields", [])]


def test_the_node_is_avoided_and_the_hash_is_the_same(tiny: dict[str, Any]) -> None:
    before, after = affinities(tiny, Surroundings())
    assert before == {}
    assert avoided(after) == ["full"]
    children = planned(tiny, Surroundings()).rendered.replicas[0]
    assert [child.hash for child in avoiding_nodes(Step(apply=children), {0: "full"}).apply] == [
        child.hash for child in children
    ]


def test_what_the_device_plugin_needs_of_a_node_stays(tiny: dict[str, Any]) -> None:
    before, after = affinities(tiny, Surroundings(Cluster(nodes=(node("gpu-1", "mps", 2),))))
    assert avoided(after) == ["full"]
    for kind, rules in before.items():
        assert rules.items() <= after[kind].items()


def test_the_user_s_own_preferences_stay(tiny: dict[str, Any]) -> None:
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    wanted = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": zone}]}}
    tiny["spec"]["podTemplate"] = {"spec": {"affinity": wanted}}
    _, after = affinities(tiny, Surroundings())
    assert avoided(after) == ["full"]
    terms = after["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert {"weight": 1, "preference": zone} in terms
