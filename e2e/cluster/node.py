"""One node of a cluster: its containers' images, its invented GPUs, its daemons, and how it is started."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import record
from e2e.cluster.control_plane import failed, repeatedly_ended, starts_of, write_daemons
from e2e.cluster.daemons import NodePlan, node_daemons
from e2e.cluster.errors import ClusterError
from e2e.cluster.gpus import GPU_DAEMON, MEMORY_DAEMON, Gpus, gpu_daemons
from e2e.cluster.images import NodeImages
from e2e.cluster.layout import NODE, Instance
from e2e.cluster.namespaces import start_namespaces
from e2e.cluster.network import Addresses
from e2e.cluster.node_files import NodeFacts, node_files
from e2e.cluster.pki import Authority, Identity
from e2e.cluster.progress import Progress
from e2e.cluster.record import Record, remove_leftovers
from e2e.cluster.requirements import cni_plugins
from e2e.cluster.store import lease
from e2e.fake_gpu.device_plugin import LABEL_PREFIX
from e2e.fake_gpu.faults import Fault, Faults, read, write
from e2e.fake_gpu.memory import Usage, usage
from e2e.fake_gpu.memory_server import RECORD
from e2e.fake_gpu.slices import DRIVER
from e2e.fake_gpu.state import make_control, pipes
from e2e.images.busybox import busybox_archives

API_PORT = 6443
READY_SECONDS = 120.0


@dataclass(frozen=True)
class Node:
    """A running node."""

    instance: Instance
    record: Record
    programs: Mapping[str, Path]

    @property
    def name(self) -> str:
        """As Kubernetes calls it."""
        return self.instance.node_name

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
        if not gpus.count:
            self._forget_gpus()
            return
        offered, wanted = self.gpu_plugin / "offered.json", gpu_daemons(self.instance, gpus)
        if any(self._spec(name) != each for name, each in wanted.items()):
            offered.unlink(missing_ok=True)
            write_daemons(self.instance.daemons, wanted)
            self.record.init.hang_up()
        wait_for(self.instance, f"{gpus.count} invented GPUs", offered.exists)

    def fail_gpu(self, index: int, fault: Fault | None = None) -> None:
        """Make the GPU of this minor number fail, as `fault` says (by default as NVIDIA's driver marks an Xid 79)."""
        self._set_faults({**read(self.gpu_plugin).of, f"gpu-{index}": fault or Fault()})

    def heal_gpus(self) -> None:
        """End every fault of the node's GPUs, and what was lost of MPS."""
        self._set_faults({})
        for pipe in pipes(self.gpu_plugin):
            make_control(pipe)

    def lose_mps(self) -> None:
        """Take the MPS control daemons away: clients find none until `heal_gpus`."""
        for pipe in pipes(self.gpu_plugin):
            (pipe / "control").unlink(missing_ok=True)

    def _set_faults(self, faults: Mapping[str, Fault]) -> None:
        write(self.gpu_plugin, Faults(faults))

    def stop_kubelet(self) -> None:
        """Stop the kubelet: the node becomes NotReady, and its containers run on."""
        self._move_kubelet(self.instance.daemons, self._stopped)
        wait_for(self.instance, "the kubelet's end", lambda: "kubelet" not in self.daemons())

    def start_kubelet(self) -> None:
        """Start it again, and wait until the node is Ready."""
        self._move_kubelet(self._stopped, self.instance.daemons)
        wait_for(self.instance, "the kubelet", lambda: bool(self.daemons().get("kubelet", {}).get("pid")))
        wait_until_ready(self)

    @property
    def _stopped(self) -> Path:
        return self.instance.folder / "stopped"

    def _move_kubelet(self, source: Path, target: Path) -> None:
        target.mkdir(exist_ok=True)
        if (source / "kubelet.json").exists():
            (source / "kubelet.json").replace(target / "kubelet.json")
        self.record.init.hang_up()

    def daemons(self) -> dict[str, dict[str, Any]]:
        """What became of each daemon by now: its `pid` in the node (None while it does not run), `starts`, `ended`."""
        report: dict[str, dict[str, Any]] = json.loads(self.instance.status.read_text())
        return report

    def _spec(self, daemon: str) -> Any:
        path = self.instance.daemons / f"{daemon}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def _forget_gpus(self) -> None:
        for daemon in (GPU_DAEMON, MEMORY_DAEMON):
            (self.instance.daemons / f"{daemon}.json").unlink(missing_ok=True)
        self.record.init.hang_up()
        self.kubectl("delete", "resourceslices", f"--field-selector=spec.nodeName={self.name}")
        labels = json.loads(self.kubectl("get", "node", self.name, "-o", "json"))["metadata"]["labels"]
        if stale := [f"{each}-" for each in labels if each.startswith(LABEL_PREFIX)]:
            self.kubectl("label", "node", self.name, *stale)


@dataclass(frozen=True)
class Joining:
    """What a node needs to know of the cluster that it joins: its first node's addresses, its API server, its keys."""

    cluster: Addresses
    authority: Authority

    @property
    def server(self) -> str:
        return f"https://{self.cluster.node}:{API_PORT}"

    @property
    def ready(self) -> str:
        return f"https:{self.cluster.node}:{API_PORT}/readyz"


def remove(instance: Instance) -> list[str]:
    """End the node and remove all it left but its logs and images; returns what was found."""
    found = remove_leftovers(instance)
    for folder in (instance.node, instance.daemons, instance.folder / "stopped"):
        shutil.rmtree(folder, ignore_errors=True)
    return found


@contextmanager
def namespaces(instance: Instance, progress: Progress) -> Iterator[Record]:
    """An instance's node, so far without a daemon. What is done in the block makes it one, or it is removed again."""
    shutil.rmtree(instance.logs, ignore_errors=True)
    for folder in (instance.node / "files" / "cni", instance.daemons, instance.logs):
        folder.mkdir(parents=True, exist_ok=True)
    instance.status.unlink(missing_ok=True)
    with lease() as store, progress.step(f"starting the node {instance.node_name}"):
        try:
            yield start_namespaces(instance, store)
        except BaseException:
            remove_leftovers(instance)
            raise


def prepare(instance: Instance, addresses: Addresses, joining: Joining, programs: Mapping[str, Path]) -> None:
    """Hand the node's keys, files and daemons over. It starts them when it is told to look."""
    names = (f"IP:{addresses.node}", f"DNS:{instance.node_name}")
    joining.authority.issue(Identity(instance.node_name, f"system:node:{instance.node_name}", "system:nodes", names))
    joining.authority.write_kubeconfig(instance.node_name, joining.server, instance.name)
    for name, content in node_files(_facts(instance, addresses, joining)).items():
        (instance.node / "files" / name).write_text(content)
    plan = NodePlan(
        programs, instance.pki, instance.logs, NODE / "files", instance.node_name, addresses.node, joining.ready
    )
    daemons = node_daemons(plan)
    if instance.index:
        del daemons["coredns"]  # the cluster's is on the first node
    write_daemons(instance.daemons, daemons)


def _facts(instance: Instance, addresses: Addresses, joining: Joining) -> NodeFacts:
    plugins = cni_plugins()
    assert plugins, "check_node has made sure of them"
    return NodeFacts(
        node_name=instance.node_name,
        node_ip=addresses.node,
        pod_cidr=str(addresses.pods),
        first_pod=addresses.first_pod,
        last_pod=addresses.last_pod,
        dns_ip=joining.cluster.dns_service,
        cgroup=instance.tag,
        pki=instance.pki,
        cni_plugins=plugins,
    )


def import_busybox(node: Node) -> None:
    """The images that every node has, as soon as containerd answers."""
    wait_for(node.instance, "containerd", lambda: succeeds(node.inside(node.programs["ctr"], "version")))
    node.images.load(busybox_archives(Progress(quiet=True)), Progress(quiet=True))


def wait_until_ready(node: Node) -> None:
    """Until Kubernetes calls the node Ready."""
    ready = ("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=1s")
    wait_for(node.instance, f"the node {node.name}", lambda: "condition met" in node.kubectl(*ready, check=False))


def wait_for(instance: Instance, what: str, there: Callable[[], bool]) -> None:
    """Raise ClusterError, with the end of a log, where a node does not get as far."""
    deadline, before = time.monotonic() + READY_SECONDS, starts_of(instance.status)
    while not there():
        if not (current := record.load(instance)) or not current.alive:
            raise failed(instance.logs, "init", f"the node ended while it waited for {what}")
        if ended := repeatedly_ended(instance.status, before, most=3):
            raise failed(instance.logs, ended, f"{ended} does not stay up")
        if time.monotonic() > deadline:
            raise failed(instance.logs, "kubelet", f"{what}: not there after {READY_SECONDS:.0f} s")
        time.sleep(0.1)


def succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0
