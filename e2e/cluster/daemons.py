"""PURE: the command line of every daemon, as the specs that `init.py` runs.

Functions take a plan (addresses, folders) and return {name: spec}; nothing here touches the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.layout import CONTAINERD_SOCKET, KUBELET_ROOT

Spec = dict[str, Any]

# The defaults (20 to 50 requests a second) make the control plane, not the operator, the limit of a scale test.
CLIENT_LIMITS = ("--kube-api-qps=5000", "--kube-api-burst=10000")

ETCD_SOCKET = "etcd.sock"


@dataclass(frozen=True)
class ControlPlanePlan:
    """What the API server and its companions need to know.

    `state` is where etcd keeps its data and its sockets. etcd and the API server run in that folder (as `init.py` does)
    and name the sockets relative to it, since a Unix socket's path may not exceed 107 bytes, and a test's folder often
    does.
    """

    programs: Mapping[str, Path]
    pki: Path
    logs: Path
    state: Path
    address: str
    port: int
    service_cidr: str
    reaches_kubelets: bool = False
    scheduler: bool = True
    extra_apiserver: Sequence[str] = ()

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def ready(self) -> str:
        return f"https:{self.address}:{self.port}/readyz"


@dataclass(frozen=True)
class NodePlan:
    """What the daemons of a node need to know. Paths are those inside the node's mount namespace."""

    programs: Mapping[str, Path]
    pki: Path
    logs: Path
    files: Path
    node_name: str
    node_ip: str
    ready: str


def spec(program: Path | str, arguments: Sequence[str], log: Path, after: Sequence[str] = (), **more: Any) -> Spec:
    """One daemon as `init.py` reads it."""
    return {"argv": [str(program), *arguments], "log": str(log), "after": list(after), **more}


def control_plane_daemons(plan: ControlPlanePlan) -> dict[str, Spec]:
    """etcd, kube-apiserver, kube-controller-manager and, if wanted, kube-scheduler."""
    daemons = {
        "etcd": spec(plan.programs["etcd"], _etcd(), plan.logs / "etcd.log", cwd=str(plan.state)),
        "kube-apiserver": spec(
            plan.programs["kube-apiserver"],
            _apiserver(plan),
            plan.logs / "kube-apiserver.log",
            [f"unix:{ETCD_SOCKET}"],
            cwd=str(plan.state),
        ),
        "kube-controller-manager": spec(
            plan.programs["kube-controller-manager"],
            _controller_manager(plan),
            plan.logs / "kube-controller-manager.log",
            [plan.ready],
        ),
    }
    if plan.scheduler:
        kubeconfig = plan.pki / "scheduler.kubeconfig"
        arguments = [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0", *CLIENT_LIMITS]
        log = plan.logs / "kube-scheduler.log"
        daemons["kube-scheduler"] = spec(plan.programs["kube-scheduler"], arguments, log, [plan.ready])
    return daemons


def _etcd() -> list[str]:
    """Unix sockets, so that no port can be taken; no fsync, since nothing here outlives the cluster.

    etcd insists on a host and a port where it advertises itself; a single member never dials them.
    """
    client, peer, nowhere = f"unix://{ETCD_SOCKET}", "unix://etcd-peer.sock", "http://localhost:1"
    return [
        "--data-dir=etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={nowhere}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={nowhere}",
        f"--initial-cluster=default={nowhere}",
        "--unsafe-no-fsync",
        "--quota-backend-bytes=4294967296",
        "--auto-compaction-retention=5m",
        "--log-level=warn",
    ]


def _apiserver(plan: ControlPlanePlan) -> list[str]:
    pki = plan.pki
    arguments = [
        f"--etcd-servers=unix://{ETCD_SOCKET}",
        f"--bind-address={plan.address}",
        f"--advertise-address={plan.address}",
        f"--secure-port={plan.port}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--service-account-key-file={pki}/service-accounts.pub",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-cluster-ip-range={plan.service_cidr}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--profiling=false",
    ]
    if plan.reaches_kubelets:
        arguments += [
            f"--kubelet-certificate-authority={pki}/ca.crt",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet.key",
            "--kubelet-preferred-address-types=InternalIP",  # else logs and exec look the node's name up
        ]
    else:
        arguments.append("--endpoint-reconciler-type=none")  # a loopback address cannot be an endpoint
    return [*arguments, *plan.extra_apiserver]


def _controller_manager(plan: ControlPlanePlan) -> list[str]:
    pki = plan.pki
    # A node whose kubelet is gone is NotReady in 20 s, not 50: kubelets here renew their leases every 3 s.
    nodes = ["--node-monitor-grace-period=20s", "--node-monitor-period=2s"] if plan.reaches_kubelets else []
    return [
        f"--kubeconfig={pki}/controller-manager.kubeconfig",
        f"--root-ca-file={pki}/ca.crt",
        f"--service-account-private-key-file={pki}/service-accounts.key",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--secure-port=0",
        *nodes,
        *CLIENT_LIMITS,
    ]


def node_daemons(plan: NodePlan) -> dict[str, Spec]:
    """containerd, kubelet, kube-proxy and CoreDNS."""
    programs, logs, pki = plan.programs, plan.logs, plan.pki
    path = {"PATH": f"{programs['containerd'].parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    containerd = ["--config", str(plan.files / "containerd.toml")]
    kubelet = [
        f"--config={plan.files}/kubelet.yaml",
        f"--kubeconfig={pki}/{plan.node_name}.kubeconfig",
        f"--root-dir={KUBELET_ROOT}",
        f"--hostname-override={plan.node_name}",
        f"--node-ip={plan.node_ip}",  # not a loopback one, or hostNetwork pods and logs cannot be reached
    ]
    proxy = [f"--config={plan.files}/kube-proxy.yaml", f"--hostname-override={plan.node_name}"]
    dns = ["-conf", str(plan.files / "Corefile")]
    socket = f"unix:{CONTAINERD_SOCKET}"
    return {
        "containerd": spec(programs["containerd"], containerd, logs / "containerd.log", env=path),
        "kubelet": spec(programs["kubelet"], kubelet, logs / "kubelet.log", [socket, plan.ready], env=path),
        "kube-proxy": spec(programs["kube-proxy"], proxy, logs / "kube-proxy.log", [plan.ready]),
        "coredns": spec(programs["coredns"], dns, logs / "coredns.log", [plan.ready]),
    }
