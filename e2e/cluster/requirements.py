"""What the machine must have, checked before anything starts, each thing with its remedy.

On Debian and Ubuntu, as root, missing packages are installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Progress

# Command -> Debian package. Commands that the daemons call are listed beside our own.
NODE_COMMANDS = {
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "openssl": "openssl",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "sysctl": "procps",
}
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("ptp", "host-local", "portmap", "loopback")
CNI_PACKAGE = "containernetworking-plugins"
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check_node(progress: Progress) -> None:
    """Raise ClusterError for the first thing that a node needs and this machine lacks."""
    if os.geteuid() != 0:
        raise ClusterError(
            "a node needs root: it makes network, process and mount namespaces and runs containers",
            "run it with sudo, set KUBECONFIG to a cluster that you have, or take the API-only control plane (api-up)",
        )
    lacking = missing_commands(NODE_COMMANDS)
    install({*lacking.values(), *(() if cni_plugins() else (CNI_PACKAGE,))}, progress)
    _check_kernel()


def missing_commands(commands: Mapping[str, str]) -> dict[str, str]:
    """Those of `commands` (command -> package) that are not on the path."""
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    return {command: package for command, package in commands.items() if not shutil.which(command, path=path)}


def cni_plugins() -> Path | None:
    """The folder of the container network plugins, if one has all that are used."""
    complete = [folder for folder in CNI_FOLDERS if all((folder / each).exists() for each in CNI_PLUGINS)]
    return complete[0] if complete else None


def install(packages: set[str], progress: Progress) -> None:
    """Install Debian packages, or say which are missing where that is not possible."""
    if not packages:
        return
    names = " ".join(sorted(packages))
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ClusterError(f"missing on this machine: {names}", f"install them, as root: apt-get install {names}")
    with progress.step(f"installing {names}"):
        _apt_get("update", "-qq")
        _apt_get("install", "-y", "-qq", "--no-install-recommends", *sorted(packages))


def _apt_get(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(["apt-get", *arguments], capture_output=True, text=True, env=environment)
    if done.returncode and arguments[0] != "update":  # one broken source among many must not stop an install
        raise ClusterError(
            f"apt-get {' '.join(arguments)} failed",
            "repair the machine's package sources",
            done.stderr.splitlines()[-5:],
        )


def _check_kernel() -> None:
    for name, feature in (
        ("net", "NET_NS"),
        ("pid", "PID_NS"),
        ("mnt", "namespaces"),
        ("ipc", "IPC_NS"),
        ("uts", "UTS_NS"),
    ):
        if not Path(f"/proc/self/ns/{name}").exists():
            raise _kernel(f"the kernel has no {name} namespaces", f"use a kernel with CONFIG_{feature}")
    if "overlay" not in Path("/proc/filesystems").read_text() and not _succeeds("modprobe", "overlay"):
        raise _kernel("the kernel has no overlay file system", "load it (modprobe overlay) or use a kernel with it")
    absent = [each for each in CONTROLLERS if each not in cgroup_controllers()]
    if absent:
        raise _kernel(
            f"cgroup controllers are missing: {', '.join(absent)}",
            "mount /sys/fs/cgroup, and in a container run it privileged with the host's cgroup namespace",
        )
    if not _succeeds("iptables", "-w", "5", "-t", "nat", "-S"):
        raise _kernel(
            "iptables does not work here: Services need its nat table",
            "load the modules (modprobe ip_tables iptable_nat nf_tables) or run with CAP_NET_ADMIN",
        )


def cgroup_mounts() -> list[tuple[Path, str, set[str]]]:
    """(folder, `cgroup` or `cgroup2`, mount options) of every cgroup hierarchy; version 1 has one per controller."""
    rows = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return [(Path(row[1]), row[2], set(row[3].split(","))) for row in rows if row[2] in ("cgroup", "cgroup2")]


def cgroup_controllers() -> set[str]:
    """The controllers that the kernel offers here, in either version of its interface."""
    found: set[str] = set()
    for folder, kind, options in cgroup_mounts():
        found |= options if kind == "cgroup" else set((folder / "cgroup.controllers").read_text().split())
    return found


def _kernel(problem: str, remedy: str) -> ClusterError:
    return ClusterError(problem, f"{remedy}; or set KUBECONFIG to a cluster that you have")


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
