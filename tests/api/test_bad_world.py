"""Children, namespaces and statuses that someone else has had their hands on."""

from __future__ import annotations

import asyncio
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from omni_operator.rendering import Settings
from omni_operator.rendering.plan import Plan, plan_for
from omni_operator.runtime.controller import Key
from tests.api.conftest import Api, operator, wait_for
from tests.api.fault_proxy import FaultProxy
from tests.api.in_process import controller, looked_at, model, put
from tests.api.test_operator import CHILDREN, children, condition, create, declared, play_until_ready

pytestmark = pytest.mark.api

MERGE = "application/merge-patch+json"


@pytest.fixture
def ready(api: Api, running_operator: subprocess.Popen[bytes]) -> Api:
    create(api, declared("tiny-omni"))
    play_until_ready(api, "tiny-omni")
    return api


def merge(api: Api, plural: str, name: str, patch: dict[str, Any]) -> None:
    api.call("PATCH", api.path(plural, name), patch, MERGE)


def uids(api: Api) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in api.get("pods")}


def test_an_edited_service_is_put_back(ready: Api) -> None:
    wanted = ready.get("services", "tiny-omni")["spec"]
    edit = {"spec": {"selector": {"app": "else"}, "ports": [{"name": "api", "port": 8000, "targetPort": 22}]}}
    merge(ready, "services", "tiny-omni", edit)
    wait_for("the Service is as it was", lambda: ready.get("services", "tiny-omni")["spec"] == wanted)
    merge(ready, "services", "tiny-omni", {"metadata": {"labels": {"omnimodel.io/name": None}}})
    labels = lambda: ready.get("services", "tiny-omni")["metadata"]["labels"]  # noqa: E731
    wait_for("its label is back", lambda: labels().get("omnimodel.io/name") == "tiny-omni")


def test_an_opened_network_policy_is_closed_again(ready: Api) -> None:
    wanted = ready.get("networkpolicies", "tiny-omni")["spec"]
    merge(ready, "networkpolicies", "tiny-omni", {"spec": {"ingress": [{}]}})
    wait_for("the policy is as it was", lambda: ready.get("networkpolicies", "tiny-omni")["spec"] == wanted)


@pytest.mark.parametrize(
    "labels",
    [
        {"omnimodel.io/name": None},
        {"omnimodel.io/name": "another"},
        {"omnimodel.io/replica": "7"},
        {"omnimodel.io/component": "front", "omnimodel.io/process": None},
    ],
    ids=["taken away", "of another", "of another replica", "as a front"],
)
def test_labels_of_a_running_pod_come_back_and_nothing_restarts(ready: Api, labels: dict[str, str | None]) -> None:
    before = ready.get("pods", "tiny-omni-0-talker")
    pods = uids(ready)
    merge(ready, "pods", "tiny-omni-0-talker", {"metadata": {"labels": labels}})
    wanted = before["metadata"]["labels"]
    wait_for("labels are back", lambda: ready.get("pods", "tiny-omni-0-talker")["metadata"]["labels"] == wanted)
    time.sleep(1)
    assert uids(ready) == pods
    wait_for("still Ready", lambda: condition(ready, "tiny-omni", "Ready").get("status") == "True")


def test_a_claim_without_its_label_keeps_its_gpu(ready: Api) -> None:
    before = ready.get("resourceclaims", "tiny-omni-0")["metadata"]
    pods = uids(ready)
    merge(ready, "resourceclaims", "tiny-omni-0", {"metadata": {"labels": {"omnimodel.io/name": None}}})
    found = lambda: ready.get("resourceclaims", "tiny-omni-0")["metadata"]  # noqa: E731
    wait_for("its label is back", lambda: found()["labels"] == before["labels"])
    assert (found()["uid"], uids(ready)) == (before["uid"], pods)


def test_an_edited_container_file_is_put_back(ready: Api) -> None:
    key = "omnimodel.io/pod-config"
    before = ready.get("pods", "tiny-omni-0-thinker")["metadata"]["annotations"]
    merge(ready, "pods", "tiny-omni-0-thinker", {"metadata": {"annotations": {key: "{}"}}})
    found = lambda: ready.get("pods", "tiny-omni-0-thinker")["metadata"]["annotations"]  # noqa: E731
    wait_for("the file is back", lambda: found()[key] == before[key])


def test_a_service_of_someone_else_without_conflicting_fields_is_not_taken_over(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    """A server-side apply onto it would succeed, and deleting the OmniModel would then delete it."""
    spec = {"type": "ExternalName", "externalName": "elsewhere.example"}
    create(api, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "tiny-omni"}, "spec": spec})
    before = api.get("services", "tiny-omni")
    create(api, declared("tiny-omni"))
    wait_for("told so", lambda: condition(api, "tiny-omni", "Ready").get("reason") == "NameTaken")
    assert api.get("services", "tiny-omni") == before
    api.must("delete", "service", "tiny-omni")
    wait_for("it goes on by itself", lambda: len(api.get("pods")) == 5, 30)


def test_a_status_that_someone_wrote_is_replaced_as_a_whole(ready: Api) -> None:
    wanted = ready.get("omnimodels", "tiny-omni")["status"]
    nonsense = {
        "endpoint": "http://elsewhere.example",
        "gpuSummary": "9: 999%",
        "readyReplicas": 7,
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "SomeoneElse",
                "message": "",
                "lastTransitionTime": "2099-01-01T00:00:00Z",
                "observedGeneration": 99,
            }
        ],
        "stages": [{"name": "ghost", "replica": 9, "pod": "ghost", "state": "Ready", "restarts": 0}],
    }
    ready.patch_status("omnimodels", "tiny-omni", nonsense)

    def without_times() -> dict[str, Any]:
        status = ready.get("omnimodels", "tiny-omni")["status"]
        return status | {"conditions": [{**c, "lastTransitionTime": ""} for c in status["conditions"]]}

    plain = wanted | {"conditions": [{**c, "lastTransitionTime": ""} for c in wanted["conditions"]]}
    wait_for("the status is as it was", lambda: without_times() == plain)


def test_a_field_that_another_manager_put_into_the_status_goes(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    """Applied, not replaced, the status would keep it, and differ from what is wanted at every pass."""
    create(api, declared("qwen3-omni-h100-overbooked"))
    name = "qwen3-omni-overbooked"
    wait_for("a verdict", lambda: condition(api, name, "Accepted"))
    api.patch_status("omnimodels", name, {"endpoint": "http://elsewhere.example"})
    wait_for("it goes", lambda: "endpoint" not in api.get("omnimodels", name)["status"])


def test_deleted_and_made_anew_at_once_it_ends_with_children_of_its_own(ready: Api) -> None:
    """Pods of the first one end slowly, and hold the names that the second one needs."""
    merge(ready, "pods", "tiny-omni-0-talker", {"metadata": {"finalizers": ["example.com/slow"]}})
    old = ready.get("omnimodels", "tiny-omni")["metadata"]["uid"]
    ready.must("delete", "omnimodel", "tiny-omni", "--wait=false")
    wait_for("it is gone", lambda: ready.get("omnimodels", "tiny-omni") is None)
    create(ready, declared("tiny-omni"))
    said = wait_for(
        "told so", lambda: (c := condition(ready, "tiny-omni", "Ready")).get("reason") == "Terminating" and c
    )
    assert "of an earlier object of this name" in said["message"]
    merge(ready, "pods", "tiny-omni-0-talker", {"metadata": {"finalizers": None}})
    ready.must("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")
    play_until_ready(ready, "tiny-omni")
    owners = {
        item["metadata"]["ownerReferences"][0]["uid"]
        for kind in CHILDREN
        for item in ready.get(kind)
        if item["metadata"]["name"] != "kubernetes"
    }
    assert len(owners) == 1
    assert old not in owners


def test_a_namespace_that_goes_away_takes_everything_and_harms_no_other(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    create(api, declared("tiny-omni"))
    wait_for("all pods", lambda: len(api.get("pods")) == 5)
    merge(api, "pods", "tiny-omni-0-talker", {"metadata": {"finalizers": ["example.com/slow"]}})
    merge(api, "omnimodels", "tiny-omni", {"metadata": {"finalizers": ["example.com/slow"]}})
    api.must("delete", "namespace", api.namespace, "--wait=false")
    time.sleep(3)
    assert running_operator.poll() is None
    merge(api, "pods", "tiny-omni-0-talker", {"metadata": {"finalizers": None}})
    merge(api, "omnimodels", "tiny-omni", {"metadata": {"finalizers": None}})
    wait_for("nothing left", lambda: children(api) == {kind: set() for kind in CHILDREN}, 60)


def test_a_gate_of_someone_else_before_ours_does_not_keep_ours_closed(api: Api, tmp_path: Path) -> None:
    """Admission of a queueing system may put its own gate in front."""
    create(api, declared("tiny-omni"))
    plan = plan_for(api.get("omnimodels", "tiny-omni"), Settings("stage:1"))
    assert isinstance(plan, Plan)
    first = next(c for c in plan.rendered.replicas[0] if c.name == plan.targets[0].pods[0].name)
    gates = [{"name": "example.com/queue"}, {"name": "omnimodel.io/gpu-turn"}]
    create(api, {**first.manifest, "spec": {**first.manifest["spec"], "schedulingGates": gates}})
    with operator(api, tmp_path / "log"):
        found = lambda: api.get("pods", first.name)["spec"]["schedulingGates"]  # noqa: E731
        wait_for("our gate is open", lambda: found() == gates[:1])


FOREIGN: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tiny-omni-0-talker", "labels": {"omnimodel.io/name": "tiny-omni"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    },
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "tiny-omni-0"},
        "spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    },
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "tiny-omni"},
        "spec": {"podSelector": {}},
    },
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda foreign: foreign["kind"])
def test_what_someone_else_has_under_our_name_is_told_and_left(
    api: Api, running_operator: subprocess.Popen[bytes], foreign: dict[str, Any]
) -> None:
    create(api, foreign)
    kind, name = foreign["kind"].lower(), foreign["metadata"]["name"]
    before = api.must("get", kind, name, "-o", "jsonpath={.metadata.uid}{.metadata.ownerReferences}{.spec}")
    create(api, declared("tiny-omni"))
    ready = wait_for("told so", lambda: (c := condition(api, "tiny-omni", "Ready")).get("reason") == "NameTaken" and c)
    assert f"{foreign['kind']} {name}" in ready["message"]
    after = api.must("get", kind, name, "-o", "jsonpath={.metadata.uid}{.metadata.ownerReferences}{.spec}")
    assert after == before
    api.must("delete", kind, name, "--grace-period=0", "--force")
    play_until_ready(api, "tiny-omni", 60)


def test_a_pod_that_was_taken_from_us_is_told_and_comes_back_when_it_is_gone(ready: Api) -> None:
    """Without its owner it is no more ours than any other, and nobody else makes it go."""
    merge(ready, "pods", "tiny-omni-0-talker", {"metadata": {"ownerReferences": None}})
    said = wait_for("told so", lambda: (c := condition(ready, "tiny-omni", "Ready")).get("reason") == "NameTaken" and c)
    assert "Pod tiny-omni-0-talker" in said["message"]
    ready.must("delete", "pod", "tiny-omni-0-talker", "--grace-period=0", "--force")
    play_until_ready(ready, "tiny-omni", 60)


@pytest.mark.parametrize("shift", [timedelta(days=-2), timedelta(seconds=-7), timedelta(days=2)], ids=str)
async def test_with_a_clock_that_is_wrong_it_comes_to_the_same_end(
    api: Api, faulty: FaultProxy, shift: timedelta
) -> None:
    put(api, model("tiny-omni"))
    key = Key(api.namespace, "tiny-omni")
    wrong = controller(faulty, api.namespace, lambda: datetime.now(UTC) + shift)
    async with wrong as running, looked_at(running, key):
        await asyncio.to_thread(play_until_ready, api, "tiny-omni")
    assert "groupRestarts" not in api.get("omnimodels", "tiny-omni")["status"]
