"""PURE: invented GPUs of a node, as the daemons that offer them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from e2e.cluster.daemons import Spec, spec
from e2e.cluster.gates import written
from e2e.cluster.layout import CDI, KUBELET_ROOT, REPOSITORY, Instance
from e2e.fake_gpu import plugin_options
from e2e.fake_gpu.device_plugin import DevicePluginConfig
from e2e.fake_gpu.slices import DRIVER

GPU_DAEMON = "fake-gpu"
MEMORY_DAEMON = "fake-gpu-memory"  # by itself, so that a restart of the other frees nothing


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


def gpu_daemons(instance: Instance, gpus: Gpus) -> dict[str, Spec]:
    """The daemons that offer the GPUs, and the ledger of their memory."""
    arguments = [
        "-m",
        "e2e.fake_gpu",
        f"--kubeconfig={instance.kubeconfig}",
        f"--node={instance.node_name}",
        f"--kubelet-root={KUBELET_ROOT}",
        f"--cdi={CDI}",
        f"--count={gpus.count}",
        f"--profile={gpus.profile}",
        f"--feature-gates={written(gpus.gates)}",
        *plugin_options.written(gpus.plugin),
    ]
    after = [f"unix:{KUBELET_ROOT}/pod-resources/kubelet.sock"]
    ledger = ["-m", "e2e.fake_gpu.memory_server", str(KUBELET_ROOT / "plugins" / DRIVER)]
    return {
        MEMORY_DAEMON: _python(instance, MEMORY_DAEMON, ledger),
        GPU_DAEMON: _python(instance, GPU_DAEMON, arguments, after),
    }


def _python(instance: Instance, name: str, arguments: Sequence[str], after: Sequence[str] = ()) -> Spec:
    return spec(sys.executable, arguments, instance.logs / f"{name}.log", after, cwd=str(REPOSITORY))
