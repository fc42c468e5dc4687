"""Pod templates before a real API server: it knows the fields that we think it knows, stores templates as they were
written, and takes every pod that we render with one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_operator.api.pod_schema import pod_types
from tests.api.conftest import Api, wait_for
from tests.api.regenerate_pod_schema import pod_schema
from tests.api.test_operator import condition, create, declared
from tests.planning.templates import COMMON, THINKER, container, model, with_template
from tests.planning.test_overrides import PASSES
from tests.planning.worlds import plan_of

pytestmark = pytest.mark.api

POD = "tiny-omni-0-thinker"


def test_pods_have_the_fields_that_the_operator_knows(api: Api) -> None:
    """`kubectl get --raw /openapi/v3/api/v1 | python tests/api/regenerate_pod_schema.py`, after a new Kubernetes."""
    assert pod_schema(json.loads(api.must("get", "--raw", "/openapi/v3/api/v1"))) == pod_types()


@pytest.mark.parametrize("manifest", [row[1] for row in PASSES], ids=[row[0] for row in PASSES])
def test_what_the_rules_take_the_api_server_takes(api: Api, manifest: dict[str, Any]) -> None:
    moved = {**manifest, "metadata": {**manifest["metadata"], "namespace": api.namespace}}
    children = [child for replica in plan_of(moved).rendered.replicas.values() for child in replica]
    pods = [child.manifest for child in children if child.kind == "Pod"]
    assert pods
    for pod in pods:
        # Admission wants these to exist, which is not what is asked here.
        absent = ("serviceAccountName", "priorityClassName", "runtimeClassName")
        spec = {name: value for name, value in pod["spec"].items() if name not in absent}
        api.call("POST", f"{api.path('pods')}?dryRun=All&fieldValidation=Strict", {**pod, "spec": spec})


def test_templates_are_stored_as_written(api: Api) -> None:
    manifest = model({"affinity": {}, "tolerations": [{"key": "a", "operator": "Exists"}]}, labels={"team": "a"})
    with_template(manifest, THINKER, {"spec": container(env=[{"name": "A", "value": "b"}])})
    manifest["metadata"] = {"name": "tiny-omni"}
    create(api, manifest)
    assert api.get("omnimodels", "tiny-omni")["spec"] == {"replicas": 1, **manifest["spec"]}


def uid_of(api: Api, pod: str) -> str:
    return str(api.get("pods", pod)["metadata"]["uid"])


def test_pods_come_with_what_was_added_and_labels_change_without_a_restart(api: Api, running_operator: Any) -> None:
    template = {"metadata": {"labels": {"team": "speech"}}, "spec": container("proxy", image="envoy:1")}
    create(api, with_template(declared("tiny-omni"), COMMON, template))
    pod = wait_for("its pod is made", lambda: api.get("pods", POD))
    assert [row["name"] for row in pod["spec"]["containers"]] == ["stage", "proxy"]
    assert pod["metadata"]["labels"]["team"] == "speech"
    template["metadata"]["labels"] = {"team": "vision"}
    create(api, with_template(declared("tiny-omni"), COMMON, template))
    wait_for("the label changes", lambda: api.get("pods", POD)["metadata"]["labels"]["team"] == "vision")
    assert uid_of(api, POD) == pod["metadata"]["uid"]


def test_a_refused_template_leaves_what_runs(api: Api, running_operator: Any) -> None:
    create(api, declared("tiny-omni"))
    wait_for("its pod is made", lambda: api.get("pods", POD))
    before = uid_of(api, POD)
    variable = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    create(api, with_template(declared("tiny-omni"), COMMON, {"spec": container(env=[variable])}))
    said = wait_for("it is refused", lambda: reason(api, "Accepted", "VariableReserved"))
    assert said["status"] == "False"
    assert "spec.podTemplate.spec.containers[0].env[0].name" in said["message"]
    assert uid_of(api, POD) == before


def test_what_only_the_api_server_refuses_is_in_the_status(api: Api, running_operator: Any) -> None:
    template = {"spec": container("proxy", image="envoy:1", imagePullPolicy="Sometimes")}
    create(api, with_template(declared("tiny-omni"), COMMON, template))
    said = wait_for("it is told", lambda: reason(api, "Ready", "WriteRefused"))
    assert 'spec.containers[1].imagePullPolicy: Unsupported value: "Sometimes"' in said["message"]


def reason(api: Api, kind: str, word: str) -> dict[str, Any] | None:
    found = condition(api, "tiny-omni", kind)
    return found if found.get("reason") == word else None
