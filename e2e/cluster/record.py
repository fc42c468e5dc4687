"""What is kept about a running node, and the removal of all that it left, by whatever way it ended.

All that a node makes lives in its namespaces: kill its first process and the kernel takes every daemon, container,
mount and network device along. What remains has a name of its own (the cable's end on the machine, the cgroup) and is
removed by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Instance
from e2e.cluster.network import cut_cable
from e2e.cluster.requirements import cgroup_mounts

END_SECONDS = 20.0


@dataclass(frozen=True)
class Process:
    """A process by its id and its start time, so that another one with a reused id is never taken for it."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The running process of this id, if there is one; a zombie is none."""
        try:
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if after_name[0] in "ZX" else cls(pid, int(after_name[19]))

    @property
    def alive(self) -> bool:
        return Process.of(self.pid) == self

    def kill(self) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        if self.alive:
            os.kill(self.pid, signal.SIGHUP)


@dataclass(frozen=True)
class Record:
    """A started node: its first process, the process that waits for it, its network's number, its image store."""

    init: Process
    waiter: Process
    network: int
    store: str

    @property
    def alive(self) -> bool:
        return self.init.alive


def load(instance: Instance) -> Record | None:
    """The record of the instance's last start, if it was not taken down."""
    if not instance.record.exists():
        return None
    try:
        raw = json.loads(instance.record.read_text())
        return Record(Process(**raw["init"]), Process(**raw["waiter"]), raw["network"], raw["store"])
    except (ValueError, KeyError, TypeError):
        return None  # a start that was killed while it wrote; what it left is found by name


def save(instance: Instance, record: Record) -> None:
    unfinished = instance.record.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(asdict(record)))
    unfinished.replace(instance.record)


def remove_leftovers(instance: Instance) -> list[str]:
    """Remove what an earlier node of this name left, alive or not; returns what was found, for people to read."""
    found = []
    record = load(instance)
    if record and (record.init.alive or record.waiter.alive):
        found.append(f"process {record.init.pid}")
        record.init.kill()
        record.waiter.kill()
        _wait_for_end(record)
    if Path(f"/sys/class/net/{instance.tag}").exists():
        found.append(f"network device {instance.tag}")
        cut_cable(instance.tag)
    if cgroups := remove_cgroup(instance.tag):
        found.append(f"{len(cgroups)} cgroups")
    instance.record.unlink(missing_ok=True)
    if not instance.index:
        instance.kubeconfig.unlink(missing_ok=True)
    return found


def _wait_for_end(record: Record) -> None:
    deadline = time.monotonic() + END_SECONDS
    while record.init.alive or record.waiter.alive:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"process {record.init.pid}, the node's first, does not end",
                "it waits in the kernel: look at its state in /proc, then at the machine's disk or kernel log",
            )
        time.sleep(0.02)


def make_cgroup(name: str) -> None:
    """A cgroup of the node's own in every hierarchy, so that several nodes do not meet in `/kubepods`."""
    for root, kind, _ in cgroup_mounts():
        (root / name).mkdir(exist_ok=True)
        if kind == "cgroup":
            _inherit_cpuset(root, root / name)
        else:
            _delegate(root, root / name)


def _delegate(*folders: Path) -> None:
    """Under version 2, a controller works in a cgroup only where every parent passes it on."""
    for folder in folders:
        for controller in (folder / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):  # one that cannot be passed on is not one that pods need
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _inherit_cpuset(parent: Path, child: Path) -> None:
    """Under version 1, a new cpuset is empty, and no process may enter an empty one."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (child / name).exists() and not (child / name).read_text().strip():
            with contextlib.suppress(OSError):
                (child / name).write_text((parent / name).read_text())


def remove_cgroup(name: str) -> list[Path]:
    """Remove the node's cgroups, children first; the kernel may need a moment to empty them. Returns their tops."""
    found = []
    for root, _, _ in cgroup_mounts():
        top = root / name
        if top.exists():
            found.append(top)
            folders = sorted((each for each in top.rglob("*") if each.is_dir()), reverse=True)
            for folder in [*folders, top]:
                _remove_folder(folder)
    return found


def _remove_folder(folder: Path) -> None:
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # busy: a process of it is still on its way out
            time.sleep(0.02)
