"""What users may add to pods, and what is refused: each with its reason, its field, and what to use instead."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.api import names
from omni_operator.api.pod_schema import pod_types
from omni_operator.api.reasons import Reason
from omni_operator.planning.layout import Severity
from omni_operator.planning.rules import overrides, pod_fields
from tests.conftest import example
from tests.planning.templates import COMMON, FRONT, THINKER, container, judged, model, with_template
from tests.planning.worlds import plan_of

SIDECAR = {"name": "proxy", "image": "envoy:1"}
PASSES: list[tuple[str, dict[str, Any]]] = [
    ("labels and annotations", model(labels={"team": "speech", "cost.example.com/centre": "42"},
                                     annotations={"prometheus.io/scrape": "true", "note": "anything, at all: ü"})),
    ("runtime class", model({"runtimeClassName": "nvidia"})),
    ("service account with its token", model({"serviceAccountName": "omni", "automountServiceAccountToken": True})),
    ("priority class", model({"priorityClassName": "high"})),
    ("affinity", model({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}}]}}})),
    ("spread", model({"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]})),
    ("volume and mount", model({"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}], **container(
        volumeMounts=[{"name": "data", "mountPath": "/data"}, {"name": "models", "mountPath": "/models/more"}])})),
    ("variable from a secret", model(container(env=[
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]))),
    ("variables with a prefix", model(container(envFrom=[{"prefix": "APP_", "configMapRef": {"name": "c"}}]))),
    ("capability", model(container(securityContext={"capabilities": {"add": ["IPC_LOCK"]}}))),
    ("sidecar with all of a config map", model({"containers": [
        {**SIDECAR, "envFrom": [{"configMapRef": {"name": "c"}}], "ports": [{"containerPort": 15090}]}]})),
    ("init container that fills the cache", model({"initContainers": [
        {"name": "fetch", "image": "aws:1", "volumeMounts": [{"name": "models", "mountPath": "/models"}]}]})),
    ("native sidecar", model({"initContainers": [{**SIDECAR, "restartPolicy": "Always"}]})),
    ("another device of a named claim", model({"resourceClaims": [{"name": "nic", "resourceClaimName": "nics"}],
                                               **container(resources={"claims": [{"name": "nic"}]})})),
    ("network device of a plugin", model(container(resources={"limits": {"nvidia.com/hostdev": 1, "rdma/hca": 1}}))),
    ("both containers by name", model({"containers": [{"name": "stage", "env": [{"name": "A", "value": "b"}]},
                                                      {"name": "front", "env": [{"name": "A", "value": "c"}]}]})),
    ("image of one stage", model(container(image="mine:1", imagePullPolicy="Always"), THINKER)),
    ("readiness gate of the front", model({"readinessGates": [{"conditionType": "lb/ready"}]}, FRONT)),
    ("half a CPU", model(container(resources={"requests": {"cpu": 0.5}, "limits": {"cpu": "1"}}))),
    ("null is as if not written", model({"nodeName": None, "affinity": None})),
    ("nothing", model({})),
]  # fmt: skip


@pytest.mark.parametrize("manifest", [row[1] for row in PASSES], ids=[row[0] for row in PASSES])
def test_taken_without_a_word(manifest: dict[str, Any]) -> None:
    assert [str(problem) for problem in judged(manifest)] == []


def env(name: str) -> list[dict[str, str]]:
    return [{"name": name, "value": "0"}]


def mount(path: str) -> dict[str, Any]:
    spec = container(volumeMounts=[{"name": "data", "mountPath": path}])
    return {"volumes": [{"name": "data", "emptyDir": {}}], **spec}


MOUNT = f"{COMMON}.spec.containers[0].volumeMounts[0].mountPath"
CLAIM = f"{COMMON}.spec.resourceClaims[0]"
OURS = f"{COMMON}.spec.containers[0]"
REFUSED: list[tuple[str, dict[str, Any], Reason, str, str]] = [
    # Claims and GPUs that are not the operator's. kubernetes#126320: a template makes a claim for each pod.
    ("claim template", model({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}),
     Reason.CLAIM_NOT_SHARED, f"{CLAIM}.resourceClaimTemplateName", "use gpus of the stages"),
    ("the claim of the GPUs", model({"resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}]}),
     Reason.CLAIM_NOT_SHARED, f"{CLAIM}.name", "Use gpus of the stage"),
    ("a GPU for a sidecar", model({"containers": [{**SIDECAR, "resources": {"claims": [{"name": "gpus"}]}}]}),
     Reason.CLAIM_NOT_SHARED, f"{OURS}.resources.claims[0]", "which stage has which GPU"),
    ("a GPU of the device plugin", model(container(resources={"limits": {"nvidia.com/gpu": 1}})),
     Reason.GPU_DOUBLE_BOOKED, f"{OURS}.resources.limits[nvidia.com/gpu]", "list slots in gpus"),
    ("two of a shared GPU", model(container(resources={"limits": {"nvidia.com/gpu.shared": 2}})),
     Reason.GPU_DOUBLE_BOOKED, f"{OURS}.resources.limits[nvidia.com/gpu.shared]", "list slots in gpus"),
    ("a MIG slice for an init container",
     model({"initContainers": [{**SIDECAR, "resources": {"requests": {"nvidia.com/mig-1g.10gb": 1}}}]}),
     Reason.GPU_DOUBLE_BOOKED, f"{COMMON}.spec.initContainers[0].resources.requests[nvidia.com/mig-1g.10gb]", "gpus"),
    ("a GPU of another make", model(container(resources={"limits": {"amd.com/gpu": 1}})),
     Reason.GPU_DOUBLE_BOOKED, f"{OURS}.resources.limits[amd.com/gpu]", "gpus"),
    ("a GPU by DeviceClass",
     model(container(resources={"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 1}})),
     Reason.GPU_DOUBLE_BOOKED, f"{OURS}.resources.limits[deviceclass.resource.kubernetes.io/gpu.nvidia.com]", "gpus"),
    ("a GPU of the pod", model({"resources": {"limits": {"nvidia.com/gpu": 1}}}),
     Reason.GPU_DOUBLE_BOOKED, f"{COMMON}.spec.resources.limits[nvidia.com/gpu]", "gpus"),
    ("privileged", model({"containers": [{**SIDECAR, "securityContext": {"privileged": True}}]}),
     Reason.GPU_DOUBLE_BOOKED, f"{OURS}.securityContext.privileged", "capabilities"),
    # Variables of the driver.
    *[(name, model(container(env=env(name))), Reason.VARIABLE_RESERVED, f"{OURS}.env[0].name", "gpuMemory")
      for name in ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES",
                   "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "OMNI_POD_IP", "OMNI_STAGE_HOLD")],
    ("a variable of a sidecar", model({"containers": [{**SIDECAR, "env": env("NVIDIA_VISIBLE_DEVICES")}]}),
     Reason.VARIABLE_RESERVED, f"{OURS}.env[0].name", "Remove it"),
    ("a variable of an init container", model({"initContainers": [{**SIDECAR, "env": env("CUDA_VISIBLE_DEVICES")}]}),
     Reason.VARIABLE_RESERVED, f"{COMMON}.spec.initContainers[0].env[0].name", "Remove it"),
    ("any variables", model(container(envFrom=[{"secretRef": {"name": "s"}}])),
     Reason.VARIABLE_RESERVED, f"{OURS}.envFrom[0]", "valueFrom"),
    *[(f"prefix {prefix}", model({"containers": [{**SIDECAR, "envFrom": [
        {"prefix": prefix, "configMapRef": {"name": "c"}}]}]}), Reason.VARIABLE_RESERVED, f"{OURS}.envFrom[0]", "APP_")
      for prefix in ("C", "CUDA_", "CUDA_MPS_", "CUDA_MPS_PIPE_", "NVIDIA_VISIBLE_DEVICES")],
    # Mounts and names.
    *[(path, model(mount(path)), Reason.MOUNT_RESERVED, MOUNT, "/data")
      for path in ("/dev/shm", "/dev/shm/", "/dev//shm", "/dev/x/../shm", "dev/shm", "/dev", "/", "/dev/shm/mine",
                   "/etc/omni", "/etc", "/etc/omni/pod.json", "/models", "/models/", "/tmp", "/tmp/nvidia-mps",
                   "/tmp/nvidia-mps/log", "/opt/omni/venv", "/opt", "/tmp/..")],
    *[(f"volume {name}", model({"volumes": [{"name": name, "emptyDir": {}}]}), Reason.NAMES_COLLIDE,
       f"{COMMON}.spec.volumes[0].name", "another name") for name in ("config", "tmp", "models", "shm")],
    ("init container stage", model({"initContainers": [{"name": "stage", "image": "a"}]}), Reason.NAMES_COLLIDE,
     f"{COMMON}.spec.initContainers[0].name", "another name"),
    ("front in a stage", model(container("front"), THINKER), Reason.NAMES_COLLIDE,
     f"{THINKER}.spec.containers[0].name", "stage"),
    ("stage in the front", model(container("stage"), FRONT), Reason.NAMES_COLLIDE,
     f"{FRONT}.spec.containers[0].name", "front"),
    ("a port of the supervisor", model({"containers": [{**SIDECAR, "ports": [{"containerPort": 9400}]}]}),
     Reason.NAMES_COLLIDE, f"{OURS}.ports[0]", "another port"),
    ("a port named api", model({"containers": [{**SIDECAR, "ports": [{"containerPort": 1, "name": "api"}]}]}),
     Reason.NAMES_COLLIDE, f"{OURS}.ports[0]", "another port"),
    # Fields of the operator.
    *[(n, model({n: value}), Reason.FIELD_RESERVED, f"{COMMON}.spec.{n}", instead) for n, value, instead in (
        ("hostIPC", True, "Remove it"), ("hostPID", True, "Remove it"), ("hostNetwork", True, "Service"),
        ("nodeName", "n", "nodeSelector"), ("schedulingGates", [{"name": "g"}], "startOrder"),
        ("restartPolicy", "Never", "Remove it"), ("hostname", "h", "Remove it"), ("subdomain", "s", "Remove it"),
        ("setHostnameAsFQDN", True, "Remove it"), ("shareProcessNamespace", True, "Remove it"),
        ("priority", 1, "priorityClassName"), ("activeDeadlineSeconds", 1, "Remove it"),
        ("ephemeralContainers", [{"name": "d", "image": "i"}], "kubectl debug"), ("dnsPolicy", "Default", "Remove it"),
        ("terminationGracePeriodSeconds", 5, "25 or more"),
        ("readinessGates", [{"conditionType": "a/b"}], "frontend.podTemplate"))],
    *[(f"{name} of the stage", model(container(**{name: value})), Reason.FIELD_RESERVED, f"{OURS}.{name}", instead)
      for name, value, instead in (
          ("command", ["sh"], "engineArgs"), ("args", ["-c"], "engineArgs"), ("workingDir", "/w", "spec.image"),
          ("livenessProbe", {}, "startupTimeout"), ("readinessProbe", {}, "startupTimeout"),
          ("startupProbe", {}, "startupTimeout"), ("tty", True, "Remove it"), ("restartPolicy", "Never", "Remove it"),
          ("terminationMessagePolicy", "File", "Remove it"))],
    ("another signal to stop", model(container(lifecycle={"stopSignal": "SIGKILL"})), Reason.FIELD_RESERVED,
     f"{OURS}.lifecycle.stopSignal", "Remove it"),
    *[(f"label {key}", model(labels={key: "x"}), Reason.FIELD_RESERVED, f"{COMMON}.metadata.labels[{key}]",
       "another name") for key in (names.MODEL_LABEL, names.COMPONENT_LABEL, "omnimodel.io/mine",
                                   names.MANAGED_BY_LABEL, "app.kubernetes.io/name", "app.kubernetes.io/instance")],
    ("annotation of the operator", model(annotations={names.HASH_ANNOTATION: "x"}), Reason.FIELD_RESERVED,
     f"{COMMON}.metadata.annotations[{names.HASH_ANNOTATION}]", "another name"),
    # What no pod could have.
    ("label with a space", model(labels={"team": "two words"}), Reason.INVALID_SPEC,
     f"{COMMON}.metadata.labels[team]", "letters"),
    ("unknown field", model({"affinty": {}}), Reason.INVALID_SPEC, f"{COMMON}.spec.affinty", "did you mean affinity"),
    ("unknown field, deep", model(container(env=[{"name": "A", "valu": "b"}])), Reason.INVALID_SPEC,
     f"{OURS}.env[0].valu", "did you mean value"),
    ("a number as text", model(container(env=[{"name": "A", "value": 1}])), Reason.INVALID_SPEC,
     f"{OURS}.env[0].value", "must be text"),
    ("a list as a mapping", model({"containers": {"stage": {}}}), Reason.INVALID_SPEC, f"{COMMON}.spec.containers",
     "must be a list"),
    ("nothing in a list", model({"containers": [None]}), Reason.INVALID_SPEC, OURS, "must be a mapping, not nothing"),
    ("a container without a name", model({"containers": [{}]}), Reason.INVALID_SPEC, OURS, "name is missing"),
    ("a container twice", model({"containers": [{"name": "stage"}] * 2}), Reason.INVALID_SPEC,
     f"{COMMON}.spec.containers[1]", "listed twice"),
    ("an amount", model(container(resources={"requests": {"memory": "16GB"}})), Reason.INVALID_SPEC,
     f"{OURS}.resources.requests.memory", "write 16G, or 16Gi"),
    ("an unknown resource", model(container(resources={"requests": {"mem": "16Gi"}})), Reason.INVALID_SPEC,
     f"{OURS}.resources.requests[mem]", "Did you mean memory?"),
    ("a request above its limit", model(container(resources={"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}})),
     Reason.INVALID_SPEC, f"{OURS}.resources.requests[cpu]", "Raise the limit to 2"),
    ("a misspelled container", model(container("stages", env=[])), Reason.INVALID_SPEC, f"{OURS}.image", "stage"),
    ("a mount without volume", model(container(volumeMounts=[{"name": "dta", "mountPath": "/data"}])),
     Reason.INVALID_SPEC, f"{OURS}.volumeMounts[0].name", "Add it to volumes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("manifest", "reason", "field", "instead"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refused_with_field_and_remedy(manifest: dict[str, Any], reason: Reason, field: str, instead: str) -> None:
    found = judged(manifest)
    assert [(problem.reason, problem.field, problem.severity) for problem in found] == [(reason, field, Severity.ERROR)]
    assert instead in str(found[0])


@pytest.mark.parametrize("at", [COMMON, THINKER, FRONT])
def test_refused_wherever_it_is_written(at: str) -> None:
    assert [problem.field for problem in judged(model({"hostIPC": True}, at))] == [f"{at}.spec.hostIPC"]


def test_short_fields_are_judged_like_templates() -> None:
    manifest = example("tiny-omni")
    stage = manifest["spec"]["stages"][0]
    stage["env"] = [{"name": "A", "value": "b"}, {"name": "CUDA_MPS_X", "value": "0"}]
    stage["resources"] = {"limits": {"nvidia.com/gpu": 1, "cpu": "1"}, "requests": {"cpu": 2}}
    manifest["spec"]["frontend"] = {"resources": {"requests": {"ram": "1Gi"}}}
    assert [problem.field for problem in judged(manifest)] == [
        "spec.stages[0].env[1].name",
        "spec.stages[0].resources.limits[nvidia.com/gpu]",
        "spec.stages[0].resources.requests[cpu]",
        "spec.frontend.resources.requests[ram]",
    ]


@pytest.mark.parametrize(("value", "words"), [("16GB", "write 16G"), ("lots", "such as 500m"), (-1, "0 or more")])
def test_an_amount_that_kubernetes_would_refuse_has_its_path(value: Any, words: str) -> None:
    manifest = example("tiny-omni")
    manifest["spec"]["stages"][0]["resources"] = {"requests": {"memory": value}}
    [problem] = judged(manifest)
    assert problem.reason is Reason.INVALID_SPEC
    assert "spec.stages[0].resources.requests.memory" in problem.field
    assert words in problem.message


class TestUsersUnderMps:
    """bottlerocket#4673, dra-driver-nvidia-gpu#1153: a daemon of one user refuses the pods of another."""

    def test_two_users_on_one_gpu_are_refused(self) -> None:
        [problem] = judged(model({"securityContext": {"runAsUser": 1000, "runAsNonRoot": True}}, THINKER))
        assert problem.reason is Reason.MPS_USERS_DIFFER
        assert problem.field == f"{THINKER}.spec.securityContext.runAsUser"
        assert "thinker 1000" in problem.message
        assert "talker 0" in problem.message
        assert "multiUser" in problem.remedy

    def test_the_container_s_user_counts_before_the_pod_s(self) -> None:
        spec = {"securityContext": {"runAsUser": 0}, **container(securityContext={"runAsUser": 7})}
        [problem] = judged(model(spec, THINKER))
        assert problem.field == f"{THINKER}.spec.containers[0].securityContext.runAsUser"

    def test_one_user_that_is_not_root_is_a_warning(self) -> None:
        manifest = model(container(securityContext={"runAsUser": 1000}))
        [problem] = judged(manifest)
        assert (problem.reason, problem.severity) == (Reason.MPS_USER_NOT_SERVED, Severity.WARNING)
        assert "CUDA_ERROR_MPS_CONNECTION_FAILED" in problem.message
        assert "multiUser" in problem.remedy

    @pytest.mark.parametrize("at", [COMMON, THINKER])
    def test_a_multi_user_daemon_takes_any(self, at: str) -> None:
        manifest = model(container(securityContext={"runAsUser": 1000}), at)
        manifest["spec"]["gpus"]["sharing"]["multiUser"] = True
        assert judged(manifest) == ()

    def test_without_mps_users_are_nobody_s_business(self) -> None:
        manifest = model(container(securityContext={"runAsUser": 1000}), THINKER)
        manifest["spec"]["gpus"]["sharing"] = {"strategy": "TimeSlicing"}
        assert Reason.MPS_USERS_DIFFER not in {problem.reason for problem in judged(manifest)}

    def test_non_root_alone_cannot_start_where_pods_are_root(self) -> None:
        [problem] = judged(model({"securityContext": {"runAsNonRoot": True}}))
        assert problem.field == f"{COMMON}.spec.securityContext.runAsNonRoot"
        assert "serves root alone" in problem.message
        assert "multiUser" in problem.remedy

    def test_root_alone_cannot_start_where_pods_are_not(self) -> None:
        [problem] = judged(model({"securityContext": {"runAsUser": 0}}, FRONT))
        assert problem.field == f"{FRONT}.spec.securityContext.runAsUser"
        assert "runAsNonRoot to false" in problem.remedy

    def test_a_user_namespace_has_another_root(self) -> None:
        [problem] = judged(model({"hostUsers": False}))
        assert (problem.reason, problem.field) == (Reason.MPS_USERS_DIFFER, f"{COMMON}.spec.hostUsers")
        assert judged(model({"hostUsers": False}, FRONT)) == ()


class TestWordsAtTheWrongPlace:
    @pytest.mark.parametrize(
        ("at", "field", "says"),
        [
            ("stage", "hostIPC", "there is none, since hostIPC opens the node's shared memory"),
            ("spec", "nodeName", "there is none, since nodeName goes past the scheduler"),
            ("stage", "nodeSelector", "belongs in spec.scheduling"),
            ("spec", "resourceClaimTemplate", "the operator makes the claim of the GPUs itself"),
            ("stage", "resourceClaims", "the operator makes the claim of the GPUs itself"),
            ("stage", "CUDA_VISIBLE_DEVICES", "is set by the operator and the GPU driver"),
            ("stage", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "computePercentage"),
            ("spec", "affinity", "belongs in podTemplate.spec"),
            ("stage", "labels", "belongs in podTemplate.metadata"),
            ("spec", "sidecars", "belongs in podTemplate.spec.containers"),
            ("stage", "livenessProbe", "there is none, since livenessProbe is the supervisor's"),
        ],
    )
    def test_where_it_belongs_is_said(self, at: str, field: str, says: str) -> None:
        manifest = example("tiny-omni")
        home = manifest["spec"]["stages"][0] if at == "stage" else manifest["spec"]
        home[field] = "x"
        [problem] = judged(manifest)
        assert f"{field}: unknown field; " in problem.message
        assert says in problem.message


def test_every_field_that_kubernetes_knows_was_judged_once() -> None:
    """A new one is refused until somebody has thought about it."""
    pod, ours = pod_types()["PodSpec"]["properties"], pod_types()["Container"]["properties"]
    assert pod_fields.POD_FREE | set(pod_fields.POD_RESERVED) == set(pod)
    assert not pod_fields.POD_FREE & set(pod_fields.POD_RESERVED)
    assert pod_fields.CONTAINER_FREE | set(pod_fields.CONTAINER_RESERVED) == set(ours)
    assert not pod_fields.CONTAINER_FREE & set(pod_fields.CONTAINER_RESERVED)


@pytest.mark.parametrize("name", ["tiny-omni", "qwen3-omni-h100-colocated"])
def test_what_is_reserved_is_what_pods_have(name: str) -> None:
    plan = plan_of(example(name))
    for child in (child for replica in plan.rendered.replicas.values() for child in replica if child.kind == "Pod"):
        spec, meta = child.manifest["spec"], child.manifest["metadata"]
        own = spec["containers"][0]
        assert {volume["name"] for volume in spec["volumes"]} <= set(overrides.OWN_VOLUMES)
        reserved = {*overrides.OWN_MOUNTS, *overrides.OWN_MOUNT_POINTS}
        assert {mount["mountPath"] for mount in own["volumeMounts"]} <= reserved
        assert {port["containerPort"] for port in own["ports"]} <= overrides.OWN_PORTS
        assert {port["name"] for port in own["ports"]} <= set(overrides.OWN_PORT_NAMES)
        assert all(key.startswith(overrides.OWN_PREFIX) or key in overrides.OWN_LABELS for key in meta["labels"])
        assert all(key.startswith(overrides.OWN_PREFIX) for key in meta["annotations"])
        assert {claim["name"] for claim in spec.get("resourceClaims", ())} <= {names.POD_CLAIM}


def test_all_mistakes_are_said_at_once_and_none_that_follows_from_another() -> None:
    common = {"affinty": {}, "nodeName": "n", "volumes": [{"name": "data", "emptyDirs": {}}]}
    thinker = {"hostPID": True, **container(volumeMounts=[{"name": "data", "mountPath": "/data"}])}
    manifest = with_template(model(common), THINKER, {"spec": thinker})
    assert {problem.field for problem in judged(manifest)} == {
        f"{COMMON}.spec.affinty",
        f"{COMMON}.spec.nodeName",
        f"{COMMON}.spec.volumes[0].emptyDirs",
        f"{THINKER}.spec.hostPID",
    }
