"""What counts as changed by someone else, and what does not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from omni_operator.api import names
from omni_operator.planning.drift import Repairs, repairs
from omni_operator.planning.observed import ChildKind
from omni_operator.rendering.plan import Plan
from tests.planning.worlds import plan_of

SERVICE = (ChildKind.SERVICE, "tiny-omni")
POLICY = (ChildKind.NETWORK_POLICY, "tiny-omni")
POD = (ChildKind.POD, "tiny-omni-0-decode")
CLAIM = (ChildKind.RESOURCE_CLAIM, "tiny-omni-0")

Objects = dict[tuple[ChildKind, str], dict[str, Any]]


def as_the_api_has_them(plan: Plan) -> Objects:
    """What is rendered, with what API server and scheduler add."""
    children = [*plan.rendered.shared, *(c for some in plan.rendered.replicas.values() for c in some)]
    live = {(c.kind, c.name): copy.deepcopy(dict(c.manifest)) for c in children}
    for found in live.values():
        found["metadata"]["uid"] = f"uid-of-{found['metadata']['name']}"
    live[SERVICE]["spec"] |= {"type": "ClusterIP", "clusterIP": "10.96.0.9", "sessionAffinity": "None"}
    live[POD]["spec"] |= {"nodeName": "a"}
    return live


def found_after(tiny: dict[str, Any], change: Callable[[Objects], object]) -> Repairs:
    plan = plan_of(tiny)
    live = as_the_api_has_them(plan)
    change(live)
    return repairs(plan.rendered, live)


def annotate(live: Objects, key: str) -> None:
    live[POD]["metadata"]["annotations"][key] = "7"


def written_by(live: Objects, manager: str, key: tuple[ChildKind, str], image: str) -> None:
    fields = {"f:spec": {"f:containers": {'k:{"name":"stage"}': {"f:image": {}}}}}
    live[key]["spec"]["containers"][0]["image"] = image
    live[key]["metadata"]["managedFields"] = [{"manager": manager, "operation": "Update", "fieldsV1": fields}]


NOT_OURS: list[tuple[str, Callable[[Objects], object]]] = [
    ("nothing", lambda live: None),
    ("a label more", lambda live: live[POD]["metadata"]["labels"].update(team="speech")),
    ("an annotation more", lambda live: live[SERVICE]["metadata"]["annotations"].update(note="x")),
    ("another type", lambda live: live[SERVICE]["spec"].update(type="LoadBalancer")),
    ("a node port of the API's", lambda live: live[SERVICE]["spec"]["ports"][0].update(nodePort=30000)),
    ("a port more", lambda live: live[SERVICE]["spec"]["ports"].append({"port": 9, "protocol": "TCP"})),
    ("another generation", lambda live: annotate(live, names.GENERATION_ANNOTATION)),
    ("an outdated pod", lambda live: live[POD]["metadata"].update(labels={}, annotations={names.HASH_ANNOTATION: "x"})),
    ("an image that admission made of ours", lambda live: written_by(live, names.MANAGER, POD, "mirror/stage:1")),
    ("a toleration more", lambda live: live[POD]["spec"].update(tolerations=[{"operator": "Exists"}])),
    ("a deadline", lambda live: live[POD]["spec"].update(activeDeadlineSeconds=60)),
    ("one that goes", lambda live: live[SERVICE]["metadata"].update(deletionTimestamp="now", labels={})),
    ("one that is gone", lambda live: live.pop(POLICY)),
]  # fmt: skip


@pytest.mark.parametrize("change", [row[1] for row in NOT_OURS], ids=[row[0] for row in NOT_OURS])
def test_what_is_not_ours_or_the_rollouts_business_is_left(
    tiny: dict[str, Any], change: Callable[[Objects], object]
) -> None:
    assert found_after(tiny, change) == Repairs()


SHARED: list[tuple[str, Callable[[Objects], object], str]] = [
    ("selector", lambda live: live[SERVICE]["spec"]["selector"].update(extra="x"), "tiny-omni"),
    ("target of a port", lambda live: live[SERVICE]["spec"]["ports"][0].update(targetPort=22), "tiny-omni"),
    ("ports", lambda live: live[SERVICE]["spec"].update(ports=None), "tiny-omni"),
    ("a wider policy", lambda live: live[POLICY]["spec"]["ingress"].append({}), "tiny-omni"),
    ("a policy of other pods", lambda live: live[POLICY]["spec"].update(podSelector={"matchLabels": {}}), "tiny-omni"),
    ("a label", lambda live: live[POLICY]["metadata"]["labels"].pop(names.MANAGED_BY_LABEL), "tiny-omni"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "name"), [row[1:] for row in SHARED], ids=[row[0] for row in SHARED])
def test_an_edited_service_or_policy_is_applied_anew(
    tiny: dict[str, Any], change: Callable[[Objects], object], name: str
) -> None:
    found = found_after(tiny, change)
    assert [child.name for child in found.apply] == [name]
    assert found.relabel == ()


@pytest.mark.parametrize("key", [POD, CLAIM], ids=["pod", "claim"])
def test_labels_of_pods_and_claims_are_put_back_on_that_very_object(
    tiny: dict[str, Any], key: tuple[ChildKind, str]
) -> None:
    found = found_after(tiny, lambda live: live[key]["metadata"]["labels"].update({names.REPLICA_LABEL: "5"}))
    assert [(r.kind, r.name, r.uid) for r in found.relabel] == [(*key, f"uid-of-{key[1]}")]
    assert found.relabel[0].metadata == {"labels": {names.REPLICA_LABEL: "0"}}
    assert found.apply == ()


def test_an_edited_configuration_is_put_back_before_a_container_restarts_with_it(tiny: dict[str, Any]) -> None:
    found = found_after(tiny, lambda live: annotate(live, names.POD_CONFIG_ANNOTATION))
    assert list(found.relabel[0].metadata["annotations"]) == [names.POD_CONFIG_ANNOTATION]


def test_an_image_that_someone_edited_is_put_back_in_its_own_container(tiny: dict[str, Any]) -> None:
    def edit(live: Objects) -> None:
        written_by(live, "kubectl-edit", POD, "evil:1")
        live[POD]["spec"]["containers"].insert(0, {"name": "mesh", "image": "mesh:1"})

    [found] = found_after(tiny, edit).reimage
    assert (found.name, found.uid) == (POD[1], f"uid-of-{POD[1]}")
    assert (found.container, found.container_name, found.image) == (1, "stage", "stage:1")


@pytest.mark.parametrize(
    ("part", "key", "misleads"),
    [
        ("labels", names.REPLICA_LABEL, True),
        ("labels", names.COMPONENT_LABEL, True),
        ("labels", names.MANAGED_BY_LABEL, False),
        ("annotations", names.POD_CONFIG_ANNOTATION, False),
    ],
)
def test_no_step_is_made_on_labels_that_lead_it_astray(
    tiny: dict[str, Any], part: str, key: str, misleads: bool
) -> None:
    found = found_after(tiny, lambda live: live[POD]["metadata"][part].update({key: "7"}))
    assert (found.misleads, found.count) == (misleads, 1)
