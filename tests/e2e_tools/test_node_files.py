"""The node's configuration: verified identities, CDI, its own cgroup, short paths."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.daemons import ControlPlanePlan, NodePlan, control_plane_daemons, node_daemons
from e2e.cluster.layout import CDI, CONTAINERD_SOCKET, KUBELET_ROOT, NODE
from e2e.cluster.node_files import NodeFacts, node_files

FACTS = NodeFacts(
    node_name="omni-node",
    node_ip="10.244.0.1",
    pod_cidr="10.244.0.0/24",
    first_pod="10.244.0.10",
    last_pod="10.244.0.250",
    dns_ip="10.96.0.10",
    cgroup="omni-1",
    pki=Path("/pki"),
    cni_plugins=Path("/usr/lib/cni"),
)
DAEMONS = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
DAEMONS += ["kubelet", "kube-proxy", "containerd", "coredns"]
PROGRAMS = {name: Path("/programs") / name for name in DAEMONS}


def plan(reaches_kubelets: bool = True, scheduler: bool = True) -> ControlPlanePlan:
    return ControlPlanePlan(
        programs=PROGRAMS,
        pki=Path("/pki"),
        logs=Path("/logs"),
        state=Path("/state"),
        address="10.244.0.1",
        port=6443,
        service_cidr="10.96.0.0/24",
        reaches_kubelets=reaches_kubelets,
        scheduler=scheduler,
    )


def test_the_kubelet_authenticates_authorizes_and_has_a_cgroup_of_its_own() -> None:
    kubelet = json.loads(node_files(FACTS)["kubelet.yaml"])
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}
    assert kubelet["authorization"] == {"mode": "Webhook"}
    assert kubelet["cgroupRoot"] == "/omni-1"
    assert kubelet["clusterDNS"] == ["10.96.0.10"]


def test_images_are_never_collected() -> None:
    assert json.loads(node_files(FACTS)["kubelet.yaml"])["imageGCHighThresholdPercent"] == 100


def test_containerd_reads_cdi_specifications() -> None:
    text = node_files(FACTS)["containerd.toml"]
    assert "enable_cdi = true" in text
    assert f'cdi_spec_dirs = ["{CDI}"]' in text


def test_pods_have_routed_links_and_addresses_of_the_node_range() -> None:
    network = json.loads(node_files(FACTS)["cni/10-pods.conflist"])
    first = network["plugins"][0]
    assert first["type"] == "ptp"
    assert first["ipam"]["ranges"][0][0]["gateway"] == FACTS.node_ip


def test_nothing_skips_verification() -> None:
    daemons = {**control_plane_daemons(plan()), **node_daemons(node_plan())}
    everything = json.dumps(daemons) + json.dumps(node_files(FACTS))
    for word in ("insecure-skip", "AlwaysAllow", "token-auth-file", "anonymous-auth=true"):
        assert word not in everything


def node_plan() -> NodePlan:
    ready = plan().ready
    return NodePlan(PROGRAMS, Path("/pki"), Path("/logs"), NODE / "files", "omni-node", "10.244.0.1", ready)


def test_scheduler_and_controllers_are_not_held_back() -> None:
    daemons = control_plane_daemons(plan())
    for name in ("kube-scheduler", "kube-controller-manager"):
        assert {"--kube-api-qps=5000", "--kube-api-burst=10000"} <= set(daemons[name]["argv"])


def test_without_nodes_the_api_server_publishes_no_endpoint_and_reaches_no_kubelet() -> None:
    daemons = control_plane_daemons(plan(reaches_kubelets=False, scheduler=False))
    assert "--endpoint-reconciler-type=none" in daemons["kube-apiserver"]["argv"]
    assert not any("kubelet" in each for each in daemons["kube-apiserver"]["argv"])
    assert set(daemons) == {"etcd", "kube-apiserver", "kube-controller-manager"}


def test_the_kubelet_waits_for_containerd_and_the_api_server() -> None:
    assert node_daemons(node_plan())["kubelet"]["after"] == [f"unix:{CONTAINERD_SOCKET}", plan().ready]


def test_sockets_fit_into_a_socket_address() -> None:
    for socket in (CONTAINERD_SOCKET, KUBELET_ROOT / "plugins_registry" / "gpu.nvidia.com-reg.sock"):
        assert len(str(socket)) < 107
