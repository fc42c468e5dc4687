"""A Kubernetes of one or several nodes in namespaces of their own: bring it up, talk to it, take it down.

The first node runs the control plane and the cluster's DNS; others join it, each with a range of pod addresses of its
own, and nodes are connected pair by pair.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster import init, record
from e2e.cluster.binaries import NODE_SETS, binaries
from e2e.cluster.control_plane import issue_control_plane, write_daemons
from e2e.cluster.daemons import ControlPlanePlan, control_plane_daemons
from e2e.cluster.errors import ClusterError
from e2e.cluster.gpus import Gpus
from e2e.cluster.layout import Instance
from e2e.cluster.locks import exclusive
from e2e.cluster.network import Addresses, connect
from e2e.cluster.node import (
    API_PORT,
    Joining,
    Node,
    import_busybox,
    namespaces,
    prepare,
    remove,
    succeeds,
    wait_for,
    wait_until_ready,
)
from e2e.cluster.pki import Authority, Identity
from e2e.cluster.progress import Progress
from e2e.cluster.requirements import check_node
from e2e.images.busybox import busybox_archives

MANIFESTS = Path(__file__).resolve().parent / "manifests"


class Cluster(Node):
    """A running cluster: what tests and the command line hold. By itself it is its first node."""

    @property
    def nodes(self) -> list[Node]:
        """All that run, the first one first."""
        others = [(each, record.load(each)) for each in self.instance.others()]
        return [self, *(Node(each, found, self.programs) for each, found in others if found and found.alive)]

    def node(self, index: int) -> Node:
        """The n-th node. Raises ClusterError where there is none."""
        for node in self.nodes:
            if node.instance.index == index:
                return node
        raise ClusterError(
            f"the cluster {self.instance.name} has no node {index}",
            f"up(…, nodes={index + 1}), or python -m e2e.cluster up --name {self.instance.name} --nodes {index + 1}",
        )

    def add_node(self, progress: Progress | None = None) -> Node:
        """Join one more node, in a few seconds; it has no GPUs yet."""
        index = max(each.instance.index for each in self.nodes) + 1
        return _join(self, Instance(self.instance.name, index), progress or Progress(quiet=True))

    def remove_node(self, index: int) -> None:
        """Take a node away, with its pods, as if its machine were gone for good."""
        node = self.node(index)
        remove(node.instance)
        self.kubectl("delete", "node", node.name)
        self.kubectl("delete", "resourceslices", f"--field-selector=spec.nodeName={node.name}")
        of_node = ("-A", f"--field-selector=spec.nodeName={node.name}", "--force", "--grace-period=0")
        self.kubectl("delete", "pods", *of_node)

    def restart_api_server(self) -> None:
        """Kill the API server, and wait until the next one is ready."""
        before = self.daemons()["kube-apiserver"]
        if not succeeds(self.inside("kill", "-KILL", str(before["pid"]))):
            raise ClusterError("the API server does not run", "python -m e2e.cluster logs kube-apiserver")
        starts = before["starts"]
        wait_for(self.instance, "another API server", lambda: self.daemons()["kube-apiserver"]["starts"] != starts)
        wait_for(self.instance, "the API server", lambda: init.answers(_ready(self.addresses)))


def up(
    name: str,
    gpus: Gpus | Sequence[Gpus] | None = None,
    progress: Progress | None = None,
    nodes: int = 1,
) -> Cluster:
    """Bring the named cluster up with `nodes` nodes, or take the running one as it is and join those that it lacks.

    Then set the GPUs, if any are named: of each node, or one after another of the nodes. Returns when the nodes are
    Ready and DNS answers. Raises ClusterError with the end of a log where they do not.
    """
    shown = progress or Progress(quiet=True)
    instance = Instance(name)
    check_node(shown)
    programs = binaries(*NODE_SETS, progress=shown)
    with exclusive(_lock(instance), f"changes the cluster {name}", shown):
        cluster = running(instance, programs) or _start(instance, programs, shown)
        while len(cluster.nodes) < nodes:
            cluster.add_node(shown)
        of_nodes = [gpus] * len(cluster.nodes) if isinstance(gpus, Gpus) else list(gpus or [])
        for node, wanted in zip(cluster.nodes, of_nodes, strict=False):
            with shown.step(f"offering {wanted.count} invented GPUs ({wanted.profile}) on {node.name}"):
                node.set_gpus(wanted)
    return cluster


def running(instance: Instance, programs: Mapping[str, Path] | None = None) -> Cluster | None:
    """The instance's cluster, if its first node is up and its API server is ready."""
    found = record.load(instance)
    if not (found and found.alive and instance.kubeconfig.exists()):
        return None
    if not init.answers(_ready(Addresses(found.network))):
        return None
    return Cluster(instance, found, programs or binaries(*NODE_SETS))


def down(name: str) -> list[str]:
    """Take the named cluster down and remove all it left but its logs and images; returns what was found."""
    instance = Instance(name)
    with exclusive(_lock(instance), f"changes the cluster {name}"):
        return _remove(instance)


def _ready(addresses: Addresses) -> str:
    return f"https:{addresses.node}:{API_PORT}/readyz"


def _lock(instance: Instance) -> Path:
    """Held by whoever brings the instance up or down."""
    return instance.folder / "lock"


def _remove(instance: Instance) -> list[str]:
    found = [what for each in (*instance.others(), instance) for what in remove(each)]
    for folder in (instance.pki, instance.folder / "etcd", instance.folder / "nodes"):
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _start(instance: Instance, programs: Mapping[str, Path], progress: Progress) -> Cluster:
    if found := _remove(instance):
        progress.say(f"removed what an earlier run left: {', '.join(found)}")
    busybox_archives(progress)  # made here, where it may be shown
    with namespaces(instance, progress) as started:
        cluster = Cluster(instance, started, programs)
        plan = _control_plane(instance, cluster.addresses, programs)
        authority = issue_control_plane(plan, (f"IP:{plan.address}", f"IP:{cluster.addresses.kubernetes_service}"))
        _issue_cluster(authority, plan.server, instance)
        prepare(instance, cluster.addresses, Joining(cluster.addresses, authority), programs)
        write_daemons(instance.daemons, control_plane_daemons(plan))
        started.init.hang_up()
        _make_ready(cluster)
    return cluster


def _control_plane(instance: Instance, addresses: Addresses, programs: Mapping[str, Path]) -> ControlPlanePlan:
    return ControlPlanePlan(
        programs=programs,
        pki=instance.pki,
        logs=instance.logs,
        state=instance.folder,
        address=addresses.node,
        port=API_PORT,
        service_cidr=str(addresses.services),
        reaches_kubelets=True,
    )


def _issue_cluster(authority: Authority, server: str, instance: Instance) -> None:
    """What all nodes have in common."""
    authority.issue(Identity("kube-proxy", "system:kube-proxy"))
    authority.issue(Identity("coredns", "coredns"))
    authority.issue(Identity("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters"))
    for name in ("kube-proxy", "coredns", "admin"):
        authority.write_kubeconfig(name, server, instance.name)
    instance.kubeconfig.write_text(authority.kubeconfig("admin", server, instance.name))
    instance.kubeconfig.chmod(0o600)


def _make_ready(cluster: Cluster) -> None:
    instance, node = cluster.instance, cluster.addresses.node
    import_busybox(cluster)
    wait_for(instance, "the API server", lambda: init.answers(_ready(cluster.addresses)))
    dns = (MANIFESTS / "coredns.yaml").read_text().replace("NODE_ADDRESS", node)
    cluster.kubectl("apply", "-f", "-", stdin=dns.replace("DNS_ADDRESS", cluster.addresses.dns_service))
    wait_until_ready(cluster)
    wait_for(instance, "cluster DNS", lambda: init.answers(f"http:{node}:8181/ready"))


def _join(cluster: Cluster, instance: Instance, progress: Progress) -> Node:
    remove(instance)
    peers = cluster.nodes
    with namespaces(instance, progress) as started:
        node = Node(instance, started, cluster.programs)
        for peer in peers:
            connect(
                (f"node{peer.instance.index}", started.init.pid, node.addresses),
                (f"node{instance.index}", peer.record.init.pid, peer.addresses),
            )
        prepare(instance, node.addresses, Joining(cluster.addresses, Authority(cluster.instance.pki)), node.programs)
        started.init.hang_up()
        import_busybox(node)
        wait_until_ready(node)
    return node
