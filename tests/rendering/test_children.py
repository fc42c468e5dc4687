"""What must hold of rendered objects: who sees which GPU, what limits it, and how little a container may do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_operator.planning.rollout import Child
from tests.planning.worlds import plan_of


def rendered(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = plan_of(manifest).rendered
    every = [*found.shared, *(child for replica in found.replicas.values() for child in replica)]
    return {f"{child.kind}/{child.name}": dict(child.manifest) for child in every}


def hashes(manifest: dict[str, Any]) -> dict[str, str]:
    found = plan_of(manifest).rendered
    every: list[Child] = [*found.shared, *(child for replica in found.replicas.values() for child in replica)]
    return {child.name: child.hash for child in every}


def stage(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in manifest["spec"]["stages"] if row["name"] == name)
    return found


def env(pod: dict[str, Any]) -> dict[str, str | None]:
    return {row["name"]: row.get("value") for row in pod["spec"]["containers"][0]["env"]}


def test_a_gpu_stage_picks_its_slot_and_a_cpu_stage_only_the_node(colocated: dict[str, Any]) -> None:
    objects = rendered(colocated)
    thinker = objects["Pod/qwen3-omni-0-thinker"]["spec"]
    assert thinker["resourceClaims"] == [{"name": "gpus", "resourceClaimName": "qwen3-omni-0"}]
    assert thinker["containers"][0]["resources"]["claims"] == [{"name": "gpus", "request": "slot0"}]
    decode = objects["Pod/qwen3-omni-0-decode"]["spec"]
    assert decode["resourceClaims"] == thinker["resourceClaims"]
    assert "claims" not in decode["containers"][0]["resources"]
    assert "resourceClaims" not in objects["Pod/qwen3-omni-0--front"]["spec"]


def test_the_claim_asks_for_the_planned_card_and_the_user_s_selector(colocated: dict[str, Any]) -> None:
    colocated["spec"]["gpus"]["selector"] = "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"
    [request] = rendered(colocated)["ResourceClaim/qwen3-omni-0"]["spec"]["devices"]["requests"]
    expressions = [selector["cel"]["expression"] for selector in request["exactly"]["selectors"]]
    assert expressions == [
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('81559Mi')) >= 0",
        "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'",
    ]


def test_slots_that_a_stage_joins_get_one_mps_daemon(tiny: dict[str, Any]) -> None:
    stage(tiny, "thinker").update(gpus=[0, 1])
    stage(tiny, "talker").update(gpus=[1])
    objects = rendered(tiny)
    [entry] = objects["ResourceClaim/tiny-omni-0"]["spec"]["devices"]["config"]
    assert entry["requests"] == ["slot0", "slot1"]
    assert env(objects["Pod/tiny-omni-0-thinker"])["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=48935M,1=48935M"
    assert env(objects["Pod/tiny-omni-0-talker"])["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=16311M"


def test_a_slot_that_is_not_shared_gets_no_daemon(tiny: dict[str, Any]) -> None:
    stage(tiny, "talker").update(gpus=[1])
    objects = rendered(tiny)
    assert "config" not in objects["ResourceClaim/tiny-omni-0"]["spec"]["devices"]
    assert objects["Pod/tiny-omni-0-talker"]["spec"]["securityContext"]["runAsNonRoot"] is True
    assert set(told_sharing(objects).values()) == {"None"}


def told_sharing(objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What each pod's file says of sharing, by the end of its name."""
    pods = [o for o in objects.values() if o["kind"] == "Pod"]
    files = {o["metadata"]["name"]: o["metadata"]["annotations"]["omnimodel.io/pod-config"] for o in pods}
    return {name.removeprefix("tiny-omni-0-"): json.loads(text)["sharing"] for name, text in files.items()}


def test_only_a_pod_that_shares_a_gpu_is_told_so(tiny: dict[str, Any]) -> None:
    assert told_sharing(rendered(tiny)) == {
        "thinker": "MPS",
        "talker": "MPS",
        "preprocessing": "None",
        "decode": "None",
        "-front": "None",
    }
    stage(tiny, "thinker").update(gpus=[0, 1])
    assert told_sharing(rendered(tiny))["thinker"] == "MPS", "it shares one of its two"


@pytest.mark.parametrize("strategy", ["TimeSlicing", "None"])
def test_other_strategies_need_no_config_and_run_as_non_root(tiny: dict[str, Any], strategy: str) -> None:
    tiny["spec"]["gpus"]["sharing"] = {"strategy": strategy}
    if strategy == "None":
        stage(tiny, "talker").update(gpus=[1])
    objects = rendered(tiny)
    assert "config" not in objects["ResourceClaim/tiny-omni-0"]["spec"]["devices"]
    for key, manifest in objects.items():
        if key.startswith("Pod/"):
            assert manifest["spec"]["securityContext"]["runAsUser"] == 65532
            assert not any(name.startswith("CUDA_MPS") for name in env(manifest))
            assert {"name": "shm", "mountPath": "/dev/shm"} in manifest["spec"]["containers"][0]["volumeMounts"]


def test_under_mps_only_gpu_pods_have_the_daemon_s_user_and_its_shared_memory(tiny: dict[str, Any]) -> None:
    objects = rendered(tiny)
    users = {key: m["spec"]["securityContext"]["runAsUser"] for key, m in objects.items() if key.startswith("Pod/")}
    assert {key for key, user in users.items() if user == 0} == {"Pod/tiny-omni-0-thinker", "Pod/tiny-omni-0-talker"}
    mounts = objects["Pod/tiny-omni-0-thinker"]["spec"]["containers"][0]["volumeMounts"]
    assert "/dev/shm" not in [mount["mountPath"] for mount in mounts], "the driver mounts one for all clients"


def test_a_multi_user_daemon_takes_non_root_pods(tiny: dict[str, Any]) -> None:
    tiny["spec"]["gpus"]["sharing"]["multiUser"] = True
    pod = rendered(tiny)["Pod/tiny-omni-0-thinker"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


def test_no_container_may_do_more_than_it_needs(colocated: dict[str, Any]) -> None:
    for key, manifest in rendered(colocated).items():
        if not key.startswith("Pod/"):
            continue
        spec = manifest["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert not {"hostNetwork", "hostPID", "hostIPC", "nodeName"} & set(spec)


def test_stage_ports_are_open_to_the_model_s_own_pods_only(tiny: dict[str, Any]) -> None:
    spec = rendered(tiny)["NetworkPolicy/tiny-omni"]["spec"]
    own = {"podSelector": {"matchLabels": {"omnimodel.io/name": "tiny-omni"}}}
    assert spec["podSelector"] == own["podSelector"]
    assert spec["ingress"][0] == {"from": [own]}
    assert [port["port"] for port in spec["ingress"][1]["ports"]] == ["api", "supervisor"]


def test_everything_is_owned_by_the_omnimodel(colocated: dict[str, Any]) -> None:
    for manifest in rendered(colocated).values():
        [owner] = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("OmniModel", "u-1", True)


def test_an_engine_argument_changes_its_own_pod_only(colocated: dict[str, Any]) -> None:
    before = hashes(colocated)
    stage(colocated, "thinker")["engineArgs"] = {"max_running_requests": 8}
    after = hashes(colocated)
    assert {name for name in before if before[name] != after[name]} == {"qwen3-omni-0-thinker"}


def test_an_image_changes_every_pod_and_nothing_else(colocated: dict[str, Any]) -> None:
    before = hashes(colocated)
    colocated["spec"]["image"] = "stage:2"
    after = hashes(colocated)
    assert len({name for name in before if before[name] != after[name]}) == 8


def test_labels_of_the_model_and_its_generation_change_nothing(colocated: dict[str, Any]) -> None:
    before = hashes(colocated)
    colocated["metadata"] |= {"generation": 9, "labels": {"team": "a"}}
    assert hashes(colocated) == before


@pytest.mark.parametrize(
    ("cache", "volume"),
    [
        ({"emptyDir": {"sizeLimit": "200Gi"}}, {"emptyDir": {"sizeLimit": "200Gi"}}),
        ({"hostPath": {"path": "/data"}}, {"hostPath": {"path": "/data", "type": "Directory"}}),
        ({"image": {"reference": "m:1"}}, {"image": {"reference": "m:1"}}),
        ({"persistentVolumeClaim": {"claimName": "c"}}, {"persistentVolumeClaim": {"claimName": "c"}}),
    ],
)
def test_each_kind_of_cache_is_mounted(tiny: dict[str, Any], cache: dict[str, Any], volume: dict[str, Any]) -> None:
    tiny["spec"]["model"]["cache"] = cache
    spec = rendered(tiny)["Pod/tiny-omni-0-thinker"]["spec"]
    assert {"name": "models", **volume} in spec["volumes"]
    mount = next(m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "models")
    assert mount["mountPath"] == "/models"
    assert mount.get("readOnly", False) is ("image" in cache)


def test_token_environment_resources_and_placement_reach_the_pod(tiny: dict[str, Any]) -> None:
    tiny["spec"]["model"]["tokenSecretRef"] = {"name": "hub", "key": "token"}
    tiny["spec"]["scheduling"] = {"nodeSelector": {"pool": "gpu"}, "tolerations": [{"key": "k", "operator": "Exists"}]}
    stage(tiny, "thinker").update(env=[{"name": "A", "value": "b"}], resources={"requests": {"cpu": 2}})
    stage(tiny, "thinker")["computePercentage"] = 70
    spec = rendered(tiny)["Pod/tiny-omni-0-thinker"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [{"key": "k", "operator": "Exists"}]
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": 2}
    found = env({"spec": spec})
    assert found["A"] == "b"
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "70"
    assert "HF_TOKEN" in found
