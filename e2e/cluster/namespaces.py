"""A node's first process in namespaces of its own, and the cable to it.

The machine's own file system is seen inside (the programs lie there), but `/run`, `/var/lib/cni`, `/var/log/containers`
and the kubelet's folder of device plugins are private, and every mount, process and network device ends with the node's
first process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from e2e.cluster import init, record
from e2e.cluster.control_plane import failed
from e2e.cluster.layout import CDI, NODE, STORE, Instance
from e2e.cluster.locks import exclusive
from e2e.cluster.network import MACHINE_LOCK, choose, lay_cable, taken_networks
from e2e.cluster.record import Process, Record, make_cgroup
from e2e.cluster.store import Lease

# Where container networking and the kubelet write by themselves.
PRIVATE = ("/var/lib/cni", "/var/log/containers", "/var/lib/kubelet/device-plugins")


def start_namespaces(instance: Instance, store: Lease) -> Record:
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
        lay_cable(instance.tag, first.pid, addresses, services=instance.index == 0)
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
