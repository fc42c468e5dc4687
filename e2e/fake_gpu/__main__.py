"""Run the plugin on a node: `python -m e2e.fake_gpu --kubeconfig … --node … --count 2 --profile h100-80gb`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from kubernetes import config

from e2e.cluster.gates import gates
from e2e.fake_gpu.gpu_config import GATES, Driver
from e2e.fake_gpu.plugin import Api, Node, Plugin, serve
from e2e.fake_gpu.profiles import PROFILES, gpus_of
from e2e.fake_gpu.slices import DRIVER
from e2e.fake_gpu.state import State


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.fake_gpu", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--node", required=True, help="the node's name")
    parser.add_argument("--kubelet-root", type=Path, default=Path("/var/lib/kubelet"))
    parser.add_argument(
        "--cdi", type=Path, default=Path("/var/run/cdi"), help="where containerd reads CDI specifications"
    )
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="h100-80gb")
    parser.add_argument(
        "--feature-gates", type=gates, default={}, help=f"such as MPSSupport=true; of {', '.join(GATES)}"
    )
    parser.add_argument("--driver-release", choices=("25.8", "0.4"), default="25.8", help="whose error messages to use")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.feature_gates) - set(GATES)):
        parser.error(f"unrecognized feature gate: {', '.join(unknown)}; known: {', '.join(GATES)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    config.load_kube_config(arguments.kubeconfig)
    gpus = gpus_of(arguments.node, arguments.count, arguments.profile)
    node = Node(arguments.node, gpus, Driver(arguments.feature_gates, arguments.driver_release))
    state = State(arguments.kubelet_root / "plugins" / DRIVER, arguments.cdi, sys.executable, gpus)
    api = Api()
    servers = serve(Plugin(node, api, state), arguments.kubelet_root)
    servers.registration.registered.wait()  # a pod that was scheduled before would fail once, for want of a plugin
    api.publish(node)
    state.offer(gpus)
    logging.info("offering %d of %s on %s", arguments.count, arguments.profile, arguments.node)
    servers.plugin.wait_for_termination()


if __name__ == "__main__":
    main()
