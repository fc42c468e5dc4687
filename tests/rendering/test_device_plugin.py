"""Pods whose GPUs NVIDIA's device plugin gives them: what they ask for, and where they may go."""

from __future__ import annotations

from typing import Any

from omni_operator.api.reasons import Reason
from omni_operator.planning.cluster import Cluster, Surroundings
from tests.planning.test_cluster import node, planned, tiny

__all__ = ["tiny"]

LABEL = "omnimodel.io/gpu-group"


def pods(manifest: dict[str, Any], *nodes: Any) -> dict[str, dict[str, Any]]:
    children = planned(manifest, Surroundings(Cluster(nodes=nodes))).rendered.replicas[0]
    assert {str(child.kind) for child in children} == {"Pod"}, "no claim"
    return {child.name.removeprefix("tiny-omni-0-"): dict(child.manifest) for child in children}


def limits(pod: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = pod["spec"]["containers"][0]["resources"].get("limits", {})
    return found


def nodes_of(pod: dict[str, Any]) -> set[tuple[str, str, str]]:
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    return {(row["key"], row["operator"], ",".join(row["values"])) for row in term["matchExpressions"]}


def test_stages_of_a_shared_gpu_ask_for_one_part_each_on_one_node_with_one_gpu(tiny: dict[str, Any]) -> None:
    found = pods(tiny, node("gpu-1", "mps", 2, resource="nvidia.com/gpu.shared"))
    assert limits(found["thinker"]) == limits(found["talker"]) == {"nvidia.com/gpu.shared": "1"}
    assert limits(found["decode"]) == {}
    for name in ("thinker", "talker"):
        assert nodes_of(found[name]) == {
            ("nvidia.com/gpu.count", "In", "1"),
            ("nvidia.com/gpu.sharing-strategy", "In", "mps"),
            ("nvidia.com/gpu.replicas", "In", "2"),
            ("nvidia.com/gpu.memory", "Gt", "81558"),
        }
    [together] = found["talker"]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert together["labelSelector"]["matchLabels"] == {LABEL: found["thinker"]["metadata"]["labels"][LABEL]}


def test_no_other_group_of_any_namespace_comes_onto_a_shared_gpu(tiny: dict[str, Any]) -> None:
    found = pods(tiny, node("gpu-1", "mps", 2))["thinker"]
    [apart] = found["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["namespaceSelector"] == {}
    own = found["metadata"]["labels"][LABEL]
    assert apart["labelSelector"]["matchExpressions"] == [
        {"key": LABEL, "operator": "Exists"},
        {"key": LABEL, "operator": "NotIn", "values": [own]},
    ]


def test_each_process_is_held_to_its_share_within_its_part(tiny: dict[str, Any]) -> None:
    found = pods(tiny, node("gpu-1", "mps", 2))
    env = {row["name"]: row.get("value") for row in found["talker"]["spec"]["containers"][0]["env"]}
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=16311M"
    assert found["talker"]["spec"]["securityContext"]["runAsUser"] == 0
    assert "/dev/shm" not in {m["mountPath"] for m in found["talker"]["spec"]["containers"][0]["volumeMounts"]}


def test_whole_gpus_are_asked_for_by_number_and_never_on_nodes_that_share_them(tiny: dict[str, Any]) -> None:
    tiny["spec"]["gpus"]["sharing"] = {}
    tiny["spec"]["stages"] = [{"name": "thinker", "gpus": [0, 1]}, {"name": "talker", "gpus": [2]}]
    found = pods(tiny, node("eight", count=8))
    assert limits(found["thinker"]) == {"nvidia.com/gpu": "2"}
    assert limits(found["talker"]) == {"nvidia.com/gpu": "1"}
    assert ("nvidia.com/gpu.sharing-strategy", "NotIn", "mps,time-slicing") in nodes_of(found["talker"])
    assert "podAntiAffinity" not in found["talker"]["spec"]["affinity"]
    labels = {found[name]["metadata"]["labels"][LABEL] for name in ("thinker", "talker", "decode", "preprocessing")}
    assert len(labels) == 1, "one node for all stages of the replica"


def test_on_any_node_each_slot_finds_its_own(tiny: dict[str, Any]) -> None:
    tiny["spec"]["gpus"] |= {"placement": "AnyNode", "sharing": {}}
    tiny["spec"]["stages"] = [{"name": "thinker", "gpus": [0]}, {"name": "talker", "gpus": [1]}]
    found = pods(tiny, node("gpu-1"), node("gpu-2"))
    assert found["thinker"]["metadata"]["labels"][LABEL] != found["talker"]["metadata"]["labels"][LABEL]
    assert LABEL not in found["decode"]["metadata"]["labels"]
    assert "schedulingGates" not in found["decode"]["spec"]


def test_the_user_s_own_limits_stay(tiny: dict[str, Any]) -> None:
    tiny["spec"]["stages"][0]["resources"] = {"limits": {"memory": "8Gi"}, "requests": {"cpu": "1"}}
    found = pods(tiny, node("gpu-1", "mps", 2))["thinker"]["spec"]["containers"][0]["resources"]
    assert found == {"limits": {"memory": "8Gi", "nvidia.com/gpu": "1"}, "requests": {"cpu": "1"}}


def test_what_a_user_wants_of_nodes_and_resources_comes_on_top(tiny: dict[str, Any]) -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    apart = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"noisy": "true"}}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    wanted = {
        "nodeAffinity": {required: {"nodeSelectorTerms": zones}},
        "podAntiAffinity": {required: [apart]},
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
    }
    before = pods(tiny, node("gpu-1", "mps", 2))["thinker"]
    tiny["spec"]["podTemplate"] = {"spec": {"affinity": wanted}}
    tiny["spec"]["stages"][0]["resources"] = {"limits": {"memory": "1Gi"}}
    after = pods(tiny, node("gpu-1", "mps", 2))["thinker"]
    assert limits(after) == {**limits(before), "memory": "1Gi"}
    ours, both = before["spec"]["affinity"], after["spec"]["affinity"]
    assert both["podAffinity"][required] == ours["podAffinity"][required]
    assert both["podAntiAffinity"][required] == [*ours["podAntiAffinity"][required], apart]
    [own] = ours["nodeAffinity"][required]["nodeSelectorTerms"]
    assert both["nodeAffinity"][required]["nodeSelectorTerms"] == [
        {"matchExpressions": [*own["matchExpressions"], *zone["matchExpressions"]]} for zone in zones
    ]


def test_a_part_that_no_other_stage_shares_has_its_mps_daemon_too_and_the_rules_know(tiny: dict[str, Any]) -> None:
    for stage in tiny["spec"]["stages"]:
        stage |= {"process": "pipeline", "gpuMemory": "5%"}
    parts = Surroundings(Cluster(nodes=(node("parts", "mps", 4, count=8),)))
    pipeline = planned(tiny, parts).rendered.replicas[0][0].manifest["spec"]
    assert pipeline["securityContext"]["runAsUser"] == 0
    tiny["spec"]["podTemplate"] = {"spec": {"securityContext": {"runAsUser": 1000}}}
    found = planned(tiny, parts)
    assert Reason.MPS_USER_NOT_SERVED in {problem.reason for problem in found.problems}
