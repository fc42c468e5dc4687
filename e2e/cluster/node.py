"""A one-node Kubernetes in namespaces of its own: bring it up, talk to it, take it down.

The machine's own file system is seen inside (the programs lie there), but `/run`, `/var/lib/cni` and
`/var/log/containers` are private, and every mount, process and network device ends with the node's first process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster import init, record
from e2e.cluster.binaries import NODE_SETS, binaries
from e2e.cluster.control_plane import failed, issue_control_plane, repeatedly_ended, starts_of, write_daemons
from e2e.cluster.daemons import ControlPlanePlan, NodePlan, Spec, control_plane_daemons, node_daemons, spec
from e2e.cluster.errors import ClusterError
from e2e.cluster.gates import written
from e2e.cluster.images import NodeImages
from e2e.cluster.layout import CDI, KUBELET_ROOT, NODE, REPOSITORY, STORE, Instance
from e2e.cluster.locks import exclusive
from e2e.cluster.network import MACHINE_LOCK, Addresses, choose, lay_cable, taken_networks
from e2e.cluster.node_files import NodeFacts, node_files
from e2e.cluster.pki import Authority, Identity
from e2e.cluster.progress import Progress
from e2e.cluster.record import Process, Record, make_cgroup, remove_leftovers
from e2e.cluster.requirements import check_node, cni_plugins
from e2e.cluster.store import Lease, lease
from e2e.fake_gpu import plugin_options
from e2e.fake_gpu.device_plugin import LABEL_PREFIX, DevicePluginConfig
from e2e.fake_gpu.memory import Usage, usage
from e2e.fake_gpu.memory_server import RECORD
from e2e.fake_gpu.slices import DRIVER
from e2e.images.busybox import busybox_archives

API_PORT = 6443
READY_SECONDS = 120.0
GPU_DAEMON = "fake-gpu"
MEMORY_DAEMON = "fake-gpu-memory"  # by itself, so that a restart of the other frees nothing
# Where container networking and the kubelet write by themselves.
PRIVATE = ("/var/lib/cni", "/var/log/containers", "/var/lib/kubelet/device-plugins")
MANIFESTS = Path(__file__).resolve().parent / "manifests"


@dataclass(frozen=True)
class Gpus:
    """Invented GPUs of a node: how many, of which profile, and the DRA driver's feature gates.

    With `plugin` they are offered by the device plugin instead of DRA, and the node has the labels of GPU feature
    discovery.
    """

    count: int = 0
    profile: str = "h100-80gb"
    gates: Mapping[str, bool] = field(default_factory=dict)
    plugin: DevicePluginConfig | None = None


@dataclass(frozen=True)
class Cluster:
    """A running node: what tests and the command line hold."""

    instance: Instance
    record: Record
    programs: Mapping[str, Path]

    @property
    def kubeconfig(self) -> Path:
        return self.instance.kubeconfig

    @property
    def addresses(self) -> Addresses:
        return Addresses(self.record.network)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as administrator; returns its output. Raises ClusterError where it fails and `check` is set."""
        command = [str(self.programs["kubectl"]), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        if check and done.returncode:
            raise ClusterError(
                f"`kubectl {' '.join(arguments)}` failed", "see its message", done.stderr.splitlines()[-10:]
            )
        return done.stdout

    def inside(self, *command: str | Path) -> list[str]:
        """The command line that runs `command` in the node's namespaces."""
        entered = ["nsenter", f"--target={self.record.init.pid}", "--net", "--pid", "--mount"]
        return [*entered, *(str(each) for each in command)]

    @property
    def images(self) -> NodeImages:
        """The images in the node's containerd."""
        return NodeImages(self.inside, self.programs["ctr"])

    @property
    def gpu_plugin(self) -> Path:
        """The folder of the invented GPUs' plugin: its ledger, its claims, its MPS daemons."""
        return self.instance.node / "kubelet" / "plugins" / DRIVER

    def gpu_memory(self, since: float = 0.0) -> dict[str, Usage]:
        """What containers have taken of each GPU's memory, by uuid, at and after a time (`time.time()`)."""
        record = self.gpu_plugin / RECORD
        return usage((json.loads(line) for line in record.read_text().splitlines()) if record.exists() else (), since)

    def set_gpus(self, gpus: Gpus) -> None:
        """Start, change or (with a count of 0) stop the invented GPUs, and wait until the node offers them."""
        path, offered = self.instance.daemons / f"{GPU_DAEMON}.json", self.gpu_plugin / "offered.json"
        if not gpus.count:
            for name in (GPU_DAEMON, MEMORY_DAEMON):
                (self.instance.daemons / f"{name}.json").unlink(missing_ok=True)
            self.record.init.hang_up()
            self._forget_gpus()
            return
        wanted = _gpu_daemon(self, gpus)
        if not path.exists() or json.loads(path.read_text()) != wanted:
            offered.unlink(missing_ok=True)
            write_daemons(self.instance.daemons, {MEMORY_DAEMON: _memory_daemon(self.instance), GPU_DAEMON: wanted})
            self.record.init.hang_up()
        _wait_for(self.instance, f"{gpus.count} invented GPUs", offered.exists)

    def _forget_gpus(self) -> None:
        node = self.instance.node_name
        self.kubectl("delete", "resourceslices", f"--field-selector=spec.nodeName={node}")
        labels = json.loads(self.kubectl("get", "node", node, "-o", "json"))["metadata"]["labels"]
        if stale := [f"{each}-" for each in labels if each.startswith(LABEL_PREFIX)]:
            self.kubectl("label", "node", node, *stale)


def up(name: str, gpus: Gpus | None = None, progress: Progress | None = None) -> Cluster:
    """Bring the named node up, or take the running one as it is; then set its GPUs, if any are named.

    Returns when the node is Ready and its DNS answers. Raises ClusterError with the end of a log where it does not.
    """
    shown = progress or Progress(quiet=True)
    instance = Instance(name)
    check_node(shown)
    programs = binaries(*NODE_SETS, progress=shown)
    with exclusive(_lock(instance), f"changes the cluster {name}", shown):
        cluster = running(instance, programs) or _start(instance, programs, shown)
        if gpus is not None:
            with shown.step(f"offering {gpus.count} invented GPUs ({gpus.profile})"):
                cluster.set_gpus(gpus)
    return cluster


def running(instance: Instance, programs: Mapping[str, Path] | None = None) -> Cluster | None:
    """The instance's node, if it is up and its API server is ready."""
    found = record.load(instance)
    if not (found and found.alive and instance.kubeconfig.exists()):
        return None
    if not init.answers(f"https:{Addresses(found.network).node}:{API_PORT}/readyz"):
        return None
    return Cluster(instance, found, programs or binaries(*NODE_SETS))


def down(name: str) -> list[str]:
    """Take the named node down and remove all it left but its logs and images; returns what was found."""
    instance = Instance(name)
    with exclusive(_lock(instance), f"changes the cluster {name}"):
        return _remove(instance)


def _lock(instance: Instance) -> Path:
    """Held by whoever brings the instance up or down."""
    return instance.folder / "lock"


def _remove(instance: Instance) -> list[str]:
    found = remove_leftovers(instance)
    for folder in (instance.node, instance.daemons, instance.pki, instance.folder / "etcd"):
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _start(instance: Instance, programs: Mapping[str, Path], progress: Progress) -> Cluster:
    if found := _remove(instance):
        progress.say(f"removed what an earlier run left: {', '.join(found)}")
    archives = busybox_archives(progress)
    shutil.rmtree(instance.logs, ignore_errors=True)
    for folder in (instance.node / "files" / "cni", instance.daemons, instance.logs):
        folder.mkdir(parents=True, exist_ok=True)
    instance.status.unlink(missing_ok=True)
    with lease() as store, progress.step(f"starting the node {instance.node_name}"):
        try:
            started = _start_namespaces(instance, store)
            addresses = Addresses(started.network)
            _hand_over_daemons(instance, addresses, programs)
            started.init.hang_up()
            cluster = Cluster(instance, started, programs)
            _make_ready(cluster, archives)
        except BaseException:
            remove_leftovers(instance)
            raise
    return cluster


def _start_namespaces(instance: Instance, store: Lease) -> Record:
    """The first process in its namespaces, and the cable to it."""
    (instance.folder / "setup.json").write_text(json.dumps(_set_up(instance, store)))
    make_cgroup(instance.tag)
    command = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    command += [sys.executable, "-I", "-S", init.__file__, str(instance.folder)]
    with (instance.logs / "init.log").open("ab") as log:
        waiter = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[store.lock.fileno()],
            start_new_session=True,
        )
    with exclusive(MACHINE_LOCK, "starts a node"):
        first = _child_of(instance, waiter)
        addresses = choose(taken_networks())
        started = Record(first, Process.of(waiter.pid) or first, addresses.number, store.name)
        record.save(instance, started)
        lay_cable(instance.tag, first.pid, addresses)
    return started


def _set_up(instance: Instance, store: Lease) -> list[list[str]]:
    """Mounts of the node: private places where daemons would otherwise write to the machine's own."""
    for place in PRIVATE:
        Path(place).mkdir(parents=True, exist_ok=True)
    private = [["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place] for place in ("/run", *PRIVATE)]
    folders = ["mkdir", "-p", str(NODE), str(STORE), str(CDI), "/run/containerd", "/run/netns", "/run/lock"]
    return [
        ["mount", "--make-rshared", "/"],  # pods may then ask for mounts that propagate; the machine is not reached
        *private,
        folders,
        ["mount", "--bind", str(instance.node), str(NODE)],
        ["mount", "--bind", str(store.folder), str(STORE)],
    ]


def _child_of(instance: Instance, waiter: subprocess.Popen[bytes]) -> Process:
    """The process that `unshare` forked: the first of the namespaces, seen from outside."""
    deadline = time.monotonic() + 10
    children = Path(f"/proc/{waiter.pid}/task/{waiter.pid}/children")
    while waiter.poll() is None and time.monotonic() < deadline:
        for pid in children.read_text().split():
            process = Process.of(int(pid))
            if process and init.__file__ in Path(f"/proc/{pid}/cmdline").read_text():
                return process
        time.sleep(0.005)
    waiter.kill()  # its child, if there is one by now, is killed with it
    raise failed(instance.logs, "init", "the node's namespaces could not be made")


def _hand_over_daemons(instance: Instance, addresses: Addresses, programs: Mapping[str, Path]) -> None:
    plan = ControlPlanePlan(
        programs=programs,
        pki=instance.pki,
        logs=instance.logs,
        state=instance.folder,
        address=addresses.node,
        port=API_PORT,
        service_cidr=str(addresses.services),
        reaches_kubelets=True,
    )
    authority = issue_control_plane(plan, (f"IP:{addresses.node}", f"IP:{addresses.kubernetes_service}"))
    _issue_node(authority, plan.server, instance, addresses)
    instance.kubeconfig.write_text(authority.kubeconfig("admin", plan.server, instance.name))
    instance.kubeconfig.chmod(0o600)
    for name, content in node_files(_facts(instance, addresses)).items():
        (instance.node / "files" / name).write_text(content)
    node_plan = NodePlan(
        programs, instance.pki, instance.logs, NODE / "files", instance.node_name, addresses.node, plan.ready
    )
    write_daemons(instance.daemons, {**control_plane_daemons(plan), **node_daemons(node_plan)})


def _issue_node(authority: Authority, server: str, instance: Instance, addresses: Addresses) -> None:
    node = f"system:node:{instance.node_name}"
    names = (f"IP:{addresses.node}", f"DNS:{instance.node_name}")
    authority.issue(Identity("kubelet", node, "system:nodes", names))
    authority.issue(Identity("kube-proxy", "system:kube-proxy"))
    authority.issue(Identity("coredns", "coredns"))
    authority.issue(Identity("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters"))
    for name in ("kubelet", "kube-proxy", "coredns", "admin"):
        authority.write_kubeconfig(name, server, instance.name)


def _facts(instance: Instance, addresses: Addresses) -> NodeFacts:
    plugins = cni_plugins()
    assert plugins, "check_node has made sure of them"
    return NodeFacts(
        node_ip=addresses.node,
        pod_cidr=str(addresses.pods),
        first_pod=addresses.first_pod,
        last_pod=addresses.last_pod,
        dns_ip=addresses.dns_service,
        cgroup=instance.tag,
        pki=instance.pki,
        cni_plugins=plugins,
    )


def _make_ready(cluster: Cluster, archives: Sequence[Path]) -> None:
    instance, node = cluster.instance, cluster.addresses.node
    _wait_for(instance, "containerd", lambda: _succeeds(cluster.inside(cluster.programs["ctr"], "version")))
    cluster.images.load(archives, Progress(quiet=True))
    _wait_for(instance, "the API server", lambda: init.answers(f"https:{node}:{API_PORT}/readyz"))
    dns = (MANIFESTS / "coredns.yaml").read_text().replace("NODE_ADDRESS", node)
    cluster.kubectl("apply", "-f", "-", stdin=dns.replace("DNS_ADDRESS", cluster.addresses.dns_service))
    ready = ("wait", "--for=condition=Ready", f"node/{instance.node_name}", "--timeout=1s")
    _wait_for(instance, "the node", lambda: "condition met" in cluster.kubectl(*ready, check=False))
    _wait_for(instance, "cluster DNS", lambda: init.answers(f"http:{node}:8181/ready"))


def _wait_for(instance: Instance, what: str, there: Callable[[], bool]) -> None:
    deadline, before = time.monotonic() + READY_SECONDS, starts_of(instance.status)
    while not there():
        if not (current := record.load(instance)) or not current.alive:
            raise failed(instance.logs, "init", f"the node ended while it waited for {what}")
        if ended := repeatedly_ended(instance.status, before, most=3):
            raise failed(instance.logs, ended, f"{ended} does not stay up")
        if time.monotonic() > deadline:
            raise failed(instance.logs, "kubelet", f"{what}: not there after {READY_SECONDS:.0f} s")
        time.sleep(0.1)


def _gpu_daemon(cluster: Cluster, gpus: Gpus) -> Spec:
    arguments = [
        "-m",
        "e2e.fake_gpu",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--node={cluster.instance.node_name}",
        f"--kubelet-root={KUBELET_ROOT}",
        f"--cdi={CDI}",
        f"--count={gpus.count}",
        f"--profile={gpus.profile}",
        f"--feature-gates={written(gpus.gates)}",
        *plugin_options.written(gpus.plugin),
    ]
    log = cluster.instance.logs / f"{GPU_DAEMON}.log"
    return spec(
        sys.executable, arguments, log, [f"unix:{KUBELET_ROOT}/pod-resources/kubelet.sock"], cwd=str(REPOSITORY)
    )


def _memory_daemon(instance: Instance) -> Spec:
    arguments = ["-m", "e2e.fake_gpu.memory_server", str(KUBELET_ROOT / "plugins" / DRIVER)]
    return spec(sys.executable, arguments, instance.logs / f"{MEMORY_DAEMON}.log", cwd=str(REPOSITORY))


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0
