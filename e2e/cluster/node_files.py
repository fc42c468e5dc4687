"""PURE: the configuration files of a node's daemons, as text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.layout import CDI, CONTAINERD_SOCKET, NODE, STORE

PAUSE_IMAGE = "localhost/omni-pause:dev"
CLUSTER_DOMAIN = "cluster.local"


@dataclass(frozen=True)
class NodeFacts:
    """What the files depend on. Paths are those inside the node's mount namespace."""

    node_name: str
    node_ip: str
    pod_cidr: str
    first_pod: str
    last_pod: str
    dns_ip: str
    cgroup: str
    pki: Path
    cni_plugins: Path


def node_files(facts: NodeFacts) -> dict[str, str]:
    """{file name: content}; the names are those that `daemons.node` passes on."""
    return {
        "containerd.toml": _containerd(facts),
        "kubelet.yaml": _document(_kubelet(facts)),
        "kube-proxy.yaml": _document(_kube_proxy(facts)),
        "Corefile": _corefile(facts),
        "resolv.conf": "",
        "cni/10-pods.conflist": _document(_pod_network(facts)),
    }


def _document(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"


def _containerd(facts: NodeFacts) -> str:
    """CDI on. `restrict_oom_score_adj`: without CAP_SYS_RESOURCE, raising a sandbox's score would end its start."""
    return f"""version = 3
root = "{STORE}"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ["{CDI}"]
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{facts.cni_plugins}"]
    conf_dir = "{NODE}/files/cni"
"""


def _kubelet(facts: NodeFacts) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": facts.node_ip,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{facts.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{facts.pki}/{facts.node_name}.crt",
        "tlsPrivateKeyFile": f"{facts.pki}/{facts.node_name}.key",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{facts.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [facts.dns_ip],
        "resolvConf": f"{NODE}/files/resolv.conf",
        "podLogsDir": f"{NODE}/pod-logs",
        "maxPods": 200,
        "registerNode": True,
        # A test machine's disk is often nearly full, and an image that is collected cannot be pulled again.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "healthzPort": 0,
        "nodeStatusUpdateFrequency": "2s",  # how soon resources of a device plugin are seen
        "nodeLeaseDurationSeconds": 12,  # renewed in a quarter of it
        "syncFrequency": "10s",  # when a prepare is tried again that was refused; a minute by default
    }


def _kube_proxy(facts: NodeFacts) -> dict[str, Any]:
    """conntrack sizes of 0: leave them, since a namespace may not set them."""
    untouched = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": f"{facts.pki}/kube-proxy.kubeconfig"},
        "clusterCIDR": facts.pod_cidr,
        "conntrack": untouched,
        "healthzBindAddress": f"{facts.node_ip}:10256",
        "metricsBindAddress": f"{facts.node_ip}:10249",
        "iptables": {"minSyncPeriod": "0s"},
    }


def _pod_network(facts: NodeFacts) -> dict[str, Any]:
    """A routed link for each pod. Over a bridge, a Service's answers bypass kube-proxy where br_netfilter is off."""
    addresses = {
        "type": "host-local",
        "dataDir": f"{NODE}/cni-addresses",
        "ranges": [
            [
                {
                    "subnet": facts.pod_cidr,
                    "rangeStart": facts.first_pod,
                    "rangeEnd": facts.last_pod,
                    "gateway": facts.node_ip,
                }
            ]
        ],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {"type": "ptp", "ipMasq": False, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _corefile(facts: NodeFacts) -> str:
    return f""".:53 {{
    bind {facts.node_ip}
    errors
    ready {facts.node_ip}:8181
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {facts.pki}/coredns.kubeconfig
        pods insecure
        ttl 5
    }}
}}
"""
