"""Offer invented GPUs on a node: `python -m e2e.fake_gpu --kubeconfig … --node … --count 2 --profile h100-80gb`.

They are offered as NVIDIA's DRA driver does, or with `--device-plugin SHARING` as its device plugin does.
"""

from __future__ import annotations

import argparse
import logging
import sys
from functools import partial
from pathlib import Path

from kubernetes import client, config

from e2e.cluster.gates import gates
from e2e.fake_gpu import device_plugin_server, faults
from e2e.fake_gpu.device_plugin import Invalid
from e2e.fake_gpu.gpu_config import GATES, Driver
from e2e.fake_gpu.health import Health, follow
from e2e.fake_gpu.plugin import Api, Node, Plugin, serve
from e2e.fake_gpu.plugin_options import add_plugin_options, plugin_config
from e2e.fake_gpu.profiles import PROFILES, Gpu, gpus_of
from e2e.fake_gpu.slices import DRIVER
from e2e.fake_gpu.state import State


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.feature_gates) - set(GATES)):
        parser.error(f"unrecognized feature gate: {', '.join(unknown)}; known: {', '.join(GATES)}")
    try:
        plugin = plugin_config(arguments)
    except Invalid as problem:
        parser.error(str(problem))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    config.load_kube_config(arguments.kubeconfig)
    gpus = gpus_of(arguments.node, arguments.count, arguments.profile)
    folder = arguments.kubelet_root / "plugins" / DRIVER
    state = State(folder, arguments.cdi, sys.executable, gpus)
    if plugin:
        device_plugin_server.run(arguments.node, plugin, gpus, state, partial(faults.read, folder))
    _run_driver(arguments, gpus, state)


def _parser() -> argparse.ArgumentParser:
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
    add_plugin_options(parser)
    return parser


def _run_driver(arguments: argparse.Namespace, gpus: list[Gpu], state: State) -> None:
    node = Node(arguments.node, gpus, Driver(arguments.feature_gates, arguments.driver_release))
    api, asked = Api(), partial(faults.read, state.folder)
    device_plugin_server.label(client.CoreV1Api(), node.name, {})
    servers = serve(Plugin(node, api, state), Health(node.name, gpus, asked), arguments.kubelet_root)
    servers.registration.registered.wait()  # a pod that was scheduled before would fail once, for want of a plugin
    first = asked()
    api.publish(node, first)
    state.offer(gpus)
    follow(asked, first, lambda now: api.publish(node, now))
    logging.info("offering %d of %s on %s", arguments.count, arguments.profile, arguments.node)
    servers.plugin.wait_for_termination()


if __name__ == "__main__":
    main()
