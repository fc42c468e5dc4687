"""What users add is laid over the operator's pods as kubectl would, and never changes what the operator relies on."""

from __future__ import annotations

import posixpath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_operator.api import names
from omni_operator.api.pod_schema import pod_types
from omni_operator.planning.layout import Problem
from omni_operator.planning.rules.pod_fields import CONTAINER_FREE
from omni_operator.rendering.overlay import merged
from omni_operator.rendering.plan import Plan, plan_for
from tests.conftest import example
from tests.planning.templates import COMMON, FRONT, THINKER, container, model, with_template
from tests.planning.worlds import SETTINGS, plan_of

THINKER_POD, TALKER_POD, FRONT_POD = "tiny-omni-0-thinker", "tiny-omni-0-talker", "tiny-omni-0--front"


def pods(manifest: dict[str, Any]) -> dict[str, Any]:
    return pods_of(plan_of(manifest))


def pods_of(plan: Plan) -> dict[str, Any]:
    children = [child for replica in plan.rendered.replicas.values() for child in replica]
    return {child.name: child.manifest for child in children if child.kind == "Pod"}


def hashes(manifest: dict[str, Any]) -> dict[str, str]:
    children = [child for replica in plan_of(manifest).rendered.replicas.values() for child in replica]
    return {child.name: child.hash for child in children}


def lay(below: Any, above: Any, kind: str = "PodSpec") -> Any:
    return merged(below, above, pod_types()[kind])


@pytest.mark.parametrize(
    ("kind", "below", "above", "laid"),
    [
        ("PodSpec", {"nodeSelector": {"a": "1", "b": "1"}}, {"nodeSelector": {"b": "2"}},
         {"nodeSelector": {"a": "1", "b": "2"}}),
        ("PodSpec", {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]},
         {"containers": [{"name": "a", "tty": True}, {"name": "c"}]},
         {"containers": [{"name": "a", "image": "1", "tty": True}, {"name": "b"}, {"name": "c"}]}),
        ("PodSpec", {"volumes": [{"name": "a", "emptyDir": {}}]},
         {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]},
         {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}),
        ("PodSpec", {"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        ("PodSpec", {"topologySpreadConstraints": [{"topologyKey": "z", "whenUnsatisfiable": "x", "maxSkew": 1}]},
         {"topologySpreadConstraints": [{"topologyKey": "z", "whenUnsatisfiable": "y", "maxSkew": 2}]},
         {"topologySpreadConstraints": [{"topologyKey": "z", "whenUnsatisfiable": "x", "maxSkew": 1},
                                        {"topologyKey": "z", "whenUnsatisfiable": "y", "maxSkew": 2}]}),
        ("Container", {"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "valueFrom": {}}]},
         {"env": [{"name": "A", "valueFrom": {}}]}),
        ("Container", {"ports": [{"containerPort": 1, "name": "a"}]},
         {"ports": [{"containerPort": 1, "protocol": "TCP", "hostPort": 2}, {"containerPort": 1, "protocol": "UDP"}]},
         {"ports": [{"containerPort": 1, "name": "a", "protocol": "TCP", "hostPort": 2},
                    {"containerPort": 1, "protocol": "UDP"}]}),
        ("Container", {"volumeMounts": [{"name": "a", "mountPath": "/a"}]},
         {"volumeMounts": [{"name": "b", "mountPath": "/a"}]}, {"volumeMounts": [{"name": "b", "mountPath": "/a"}]}),
        ("Container", {"command": ["a", "b"]}, {"command": ["c"]}, {"command": ["c"]}),
        ("Container", {"resources": {"claims": [{"name": "g", "request": "slot0"}, {"name": "g", "request": "slot1"}]}},
         {"resources": {"claims": [{"name": "nic"}], "limits": {"cpu": 1}}},
         {"resources": {"claims": [{"name": "g", "request": "slot0"}, {"name": "g", "request": "slot1"},
                                   {"name": "nic"}], "limits": {"cpu": 1}}}),
    ],
)  # fmt: skip
def test_merged_by_what_kubernetes_says_of_each_list(kind: str, below: Any, above: Any, laid: Any) -> None:
    assert lay(below, above, kind) == laid


def test_a_common_template_reaches_every_pod_and_each_container_its_own() -> None:
    spec = {
        "runtimeClassName": "nvidia",
        "containers": [
            {"name": "stage", "env": [{"name": "A", "value": "stage"}]},
            {"name": "front", "env": [{"name": "A", "value": "front"}]},
            {"name": "proxy", "image": "envoy:1"},
        ],
    }
    for name, pod in pods(model(spec, labels={"team": "speech"})).items():
        own, *more = pod["spec"]["containers"]
        assert pod["spec"]["runtimeClassName"] == "nvidia"
        assert {"name": "A", "value": "front" if name == FRONT_POD else "stage"} in own["env"]
        assert more == [{"name": "proxy", "image": "envoy:1"}]
        assert pod["metadata"]["labels"]["team"] == "speech"


def test_what_is_said_of_one_stage_wins_over_what_is_said_of_all() -> None:
    manifest = model(
        container(env=[{"name": "A", "value": "all"}], resources={"requests": {"cpu": 1, "memory": "1Gi"}})
    )
    thinker = manifest["spec"]["stages"][0]
    thinker["resources"] = {"requests": {"cpu": 2}}
    with_template(manifest, THINKER, {"spec": container(env=[{"name": "A", "value": "mine"}])})
    found = {name: pod["spec"]["containers"][0] for name, pod in pods(manifest).items()}
    assert found[THINKER_POD]["resources"]["requests"] == {"cpu": 2, "memory": "1Gi"}
    assert {"name": "A", "value": "mine"} in found[THINKER_POD]["env"]
    assert {"name": "A", "value": "all"} in found[TALKER_POD]["env"]
    assert {"name": "A", "value": "all"} not in found[FRONT_POD]["env"]


def test_a_template_changes_the_pods_that_it_reaches_and_no_other() -> None:
    before = hashes(example("tiny-omni"))
    for at, reached in ((COMMON, set(before) - {"tiny-omni-0"}), (THINKER, {THINKER_POD}), (FRONT, {FRONT_POD})):
        after = hashes(model({"priorityClassName": "high"}, at))
        assert {name for name in before if before[name] != after[name]} == reached


def test_labels_are_changed_in_place_and_annotations_are_not() -> None:
    before = hashes(example("tiny-omni"))
    assert hashes(model(labels={"team": "a"})) == before
    assert hashes(model(annotations={"restarted-at": "noon"})) != before


def test_an_empty_template_changes_nothing() -> None:
    assert hashes(model({})) == hashes(example("tiny-omni"))


# Whatever is written.

NAMES = st.sampled_from(["stage", "front", "proxy", "gpus", "config", "models", "shm", "data", "slot0", ""])
TEXTS = st.one_of(NAMES, st.sampled_from(["/dev/shm", "/models", "/data", "/", "1", "2Gi", "TCP", "Always",
                                          "nvidia.com/gpu",
                                          "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "A", "omnimodel.io/name"]),
                  st.text(max_size=5))  # fmt: skip
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 70000), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def of_type(schema: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that mostly have the type that a pod's schema tells, so that many pass."""
    schema = pod_types()[schema["$ref"]] if "$ref" in schema else schema
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from([0, 1, 2, "1", "500m", "2Gi", "lots"])
    if kind == "string":
        return TEXTS
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return st.sampled_from([0, 1, 1000, 9400, 8000, 8080, 65532])
    if kind == "array":
        return st.lists(st.deferred(lambda: of_type(schema["items"], depth + 1)), max_size=2)
    members = schema.get("properties", {})
    if not members:
        return st.dictionaries(
            TEXTS, of_type(schema.get("additionalProperties", {"type": "string"}), depth), max_size=2
        )
    return st.deferred(lambda: objects(schema, members, depth))


def objects(schema: Any, members: Any, depth: int) -> st.SearchStrategy[Any]:
    needed = {name: of_type(members[name], depth + 1) for name in schema.get("required", ()) if name in members}
    free = {name: of_type(kind, depth + 1) for name, kind in members.items() if name not in needed}
    few = st.lists(st.sampled_from(sorted(free)), max_size=3 if depth < 5 else 0, unique=True) if free else st.just([])
    return few.flatmap(lambda picked: st.fixed_dictionaries(needed, optional={name: free[name] for name in picked}))


POD_SPEC = {**pod_types()["PodSpec"], "required": ()}
FREE = {name: of_type(pod_types()["Container"]["properties"][name]) for name in sorted(CONTAINER_FREE - {"name"})}
VARIABLE = st.fixed_dictionaries(
    {
        "name": st.sampled_from(
            ["A", "HF_HOME", "OMNI_POD_IP", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
        )
    },
    optional={"value": TEXTS, "valueFrom": st.just({"fieldRef": {"fieldPath": "x"}})},
)
MOUNT = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["data", "models", "tmp"]),
        "mountPath": st.sampled_from(
            [
                "/data",
                "/models",
                "/models/x",
                "/tmp",
                "/tmp/",
                "/tmp/x",
                "/dev/shm",
                "/etc/omni",
                "/etc",
                "/data/../etc/omni",
            ]
        ),
    }
)
PORT = st.fixed_dictionaries(
    {"containerPort": st.sampled_from([9400, 8000, 8080, 21010])},
    optional={"name": st.sampled_from(["api", "supervisor", "web"])},
)
AMOUNTS = st.sampled_from([{"cpu": 1}, {"memory": "1Gi"}, {"nvidia.com/gpu": 1}, {"rdma/hca": 1}, {}])
CLAIM = st.fixed_dictionaries({"name": st.sampled_from(["gpus", "nic"])}, optional={"request": st.just("slot0")})
RESOURCES = st.fixed_dictionaries(
    {}, optional={"requests": AMOUNTS, "limits": AMOUNTS, "claims": st.lists(CLAIM, max_size=2)}
)
LIKELY = {
    "env": st.lists(VARIABLE, max_size=2, unique_by=lambda row: row["name"]),
    "volumeMounts": st.lists(MOUNT, max_size=2, unique_by=lambda row: row["mountPath"]),
    "ports": st.lists(PORT, max_size=1),
    "resources": RESOURCES,
}
FIELDS = {**FREE, **LIKELY}
FEW = st.lists(st.sampled_from([*sorted(FIELDS), *sorted(LIKELY) * 4]), max_size=2, unique=True)
PART = FEW.flatmap(
    lambda picked: st.fixed_dictionaries(
        {
            "name": st.sampled_from(["stage", "stage", "front", "proxy"]),
            "image": st.just("image:1"),
            **{name: FIELDS[name] for name in picked},
        }
    )
)
LIKELY_SPEC = st.fixed_dictionaries(
    {"containers": st.lists(PART, min_size=1, max_size=2, unique_by=lambda part: part["name"]),
     "volumes": st.just([{"name": "data", "emptyDir": {}}])},
    optional={name: of_type(POD_SPEC["properties"][name]) for name in ("nodeSelector", "hostUsers", "imagePullSecrets")}
    | {"resourceClaims": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["gpus", "nic"])}, optional={
        "resourceClaimName": st.just("c"), "resourceClaimTemplateName": st.just("t")}), max_size=1)},
)  # fmt: skip
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {}, optional={"labels": st.dictionaries(TEXTS, TEXTS, max_size=2),
                          "annotations": st.dictionaries(TEXTS, TEXTS, max_size=2)}
        ),
        "spec": st.one_of(LIKELY_SPEC, LIKELY_SPEC, of_type(POD_SPEC), st.dictionaries(
            st.one_of(st.sampled_from(sorted(POD_SPEC["properties"])), TEXTS), ANYTHING, max_size=3)),
    },
)  # fmt: skip


def touches(path: str) -> bool:
    """Whether a mount is at or over a place that something relies on, or within one that holds files."""
    where = posixpath.normpath(posixpath.join("/", path))
    whole = ("/etc/omni", "/dev/shm", "/tmp", "/models", "/tmp/nvidia-mps")
    return any(own == where or own.startswith(where.rstrip("/") + "/") for own in whole) or where.startswith(
        ("/etc/omni/", "/dev/shm/", "/tmp/nvidia-mps/")
    )


def relied_upon(pod: Any) -> Any:
    """All of a pod by which the operator, the scheduler, the driver and the peers find their way."""
    meta, spec = pod["metadata"], pod["spec"]
    own = spec["containers"][0]
    return {
        "labels": {k: v for k, v in meta["labels"].items() if k.startswith(("omnimodel.io/", "app.kubernetes.io/"))},
        "annotations": {k: v for k, v in meta["annotations"].items() if k == names.POD_CONFIG_ANNOTATION},
        "owner": meta["ownerReferences"],
        "name": (meta["name"], meta["namespace"]),
        "claim": [claim for claim in spec.get("resourceClaims", ()) if claim["name"] == names.POD_CLAIM],
        "slots": [claim for claim in own["resources"].get("claims", ()) if claim["name"] == names.POD_CLAIM],
        "gates": spec.get("schedulingGates"),
        "host": [spec.get(key) for key in ("hostname", "subdomain", "restartPolicy", "hostIPC", "hostPID", "nodeName",
                                           "hostNetwork", "shareProcessNamespace", "activeDeadlineSeconds")],
        "variables": [row for row in own["env"] if row["name"].startswith(("CUDA_", "NVIDIA_", "OMNI_"))],
        "mounts": [row for row in own["volumeMounts"] if touches(row["mountPath"])],
        "volumes": [row for row in spec["volumes"] if row["name"] in ("config", "tmp", "models", "shm")],
        "ports": [row for row in own["ports"] if row.get("name") in ("api", "supervisor")],
        "program": [own.get(key) for key in ("name", "command", "args", "readinessProbe", "livenessProbe")],
        "gpus": [key for kind in ("requests", "limits") for key in own["resources"].get(kind, ()) if "nvidia" in key],
    }  # fmt: skip


BEFORE = {name: relied_upon(pod) for name, pod in pods(example("tiny-omni")).items()}


def check_that_nothing_relied_upon_changes(template: Any, at: str) -> None:
    plan = plan_for(with_template(example("tiny-omni"), at, template), SETTINGS)
    if isinstance(plan, Plan):
        assert {name: relied_upon(pod) for name, pod in pods_of(plan).items()} == BEFORE
        return
    assert plan
    for problem in plan:
        assert isinstance(problem, Problem)
        assert problem.message.endswith((".", "?"))
        assert problem.field.startswith(at.removesuffix(".podTemplate"))


PLACES = st.sampled_from([COMMON, THINKER, FRONT])


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(TEMPLATES, PLACES)
def test_whatever_is_written_is_refused_in_words_or_changes_nothing_relied_upon(template: Any, at: str) -> None:
    check_that_nothing_relied_upon_changes(template, at)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LIKELY_SPEC, PLACES)
def test_so_is_what_people_write(spec: Any, at: str) -> None:
    check_that_nothing_relied_upon_changes({"spec": spec}, at)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ANYTHING, PLACES, st.sampled_from(["", "spec", "metadata"]))
def test_nothing_at_all_ends_in_a_traceback(value: Any, at: str, part: str) -> None:
    plan = plan_for(with_template(example("tiny-omni"), at, {part: value} if part else value), SETTINGS)
    assert isinstance(plan, Plan) or all(problem.message for problem in plan)
