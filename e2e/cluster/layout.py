"""Where everything lies: one place that knows the folders of the repository, of the cache and of an instance.

Nothing outside the ignored cache is written. Inside the node's own mount namespace the paths are short and the usual
ones (`/run/containerd/containerd.sock`, `/run/cdi`), since a Unix socket's path may not exceed 107 bytes wherever the
repository was cloned.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = Path(__file__).resolve().parent / "modules"
CACHE = REPOSITORY / ".cache"
CLUSTERS = CACHE / "cluster"
BIN = CACHE / "bin"
STORES = CACHE / "containerd"
DEFAULT_NAME = "omni"

# Inside the node's mount namespace.
NODE = Path("/run/node")
KUBELET_ROOT = NODE / "kubelet"
STORE = Path("/run/store")
CDI = Path("/run/cdi")
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")


@dataclass(frozen=True)
class Instance:
    """One named cluster, and the folder that holds all its state; with an index, one of its further nodes.

    The first node has index 0, and its folder is the cluster's.
    """

    name: str
    index: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?", self.name):
            raise ClusterError(
                f"{self.name!r} cannot name a cluster",
                "use up to 30 lower-case letters, digits and dashes, the first a letter",
            )

    @property
    def folder(self) -> Path:
        cluster = CLUSTERS / self.name
        return cluster / "nodes" / str(self.index) if self.index else cluster

    def others(self) -> list[Instance]:
        """The further nodes that have left a folder, alive or not."""
        found = (CLUSTERS / self.name / "nodes").glob("[0-9]*")
        return [Instance(self.name, index) for index in sorted(int(each.name) for each in found)]

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, which all nodes have in common."""
        return CLUSTERS / self.name / "kubeconfig"

    @property
    def record(self) -> Path:
        """What is needed to find and remove a running node, whatever became of the process that started it."""
        return self.folder / "record.json"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def pki(self) -> Path:
        """The cluster's, which all nodes have in common."""
        return CLUSTERS / self.name / "pki"

    @property
    def node(self) -> Path:
        """The node's disk; `/run/node` inside."""
        return self.folder / "node"

    @property
    def daemons(self) -> Path:
        return self.folder / "daemons"

    @property
    def status(self) -> Path:
        return self.folder / "status.json"

    @property
    def tag(self) -> str:
        """A short name, unique on this machine, for what the kernel keeps by name: the veth, the cgroup.

        It comes from the folder, so that two clones of the repository do not meet.
        """
        return "omni-" + hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]

    @property
    def node_name(self) -> str:
        return f"{self.name}-node-{self.index}" if self.index else f"{self.name}-node"
