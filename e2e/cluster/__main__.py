"""The command line: `python -m e2e.cluster up|down|status|load|logs|kubeconfig|gpus|api-up`."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from e2e.cluster import (
    DEFAULT_NAME,
    Cluster,
    ClusterError,
    Gpus,
    Instance,
    Progress,
    control_plane,
    down,
    external_kubeconfig,
    refuse_external,
    running,
    up,
)
from e2e.cluster.gates import gates
from e2e.fake_gpu.device_plugin import Invalid
from e2e.fake_gpu.plugin_options import add_plugin_options, plugin_config
from e2e.fake_gpu.profiles import PROFILES

Command = Callable[[argparse.Namespace, Progress], int]


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    command: Command = parsed.command
    try:
        return command(parsed, Progress(quiet=parsed.quiet))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):  # whoever read our output has seen enough
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=command)
        if name != "api-up":
            added.add_argument("--name", default=DEFAULT_NAME, help=f"which cluster (default: {DEFAULT_NAME})")
        return added

    bring_up = add("up", _up, "bring the cluster up, or use the one that KUBECONFIG names")
    bring_up.add_argument("--nodes", type=int, default=1, help="at least so many nodes, each with the GPUs named here")
    _add_gpu_options(bring_up, count=None)
    add("down", _down, "take the cluster down and remove what it left")
    add("status", _status, "show what runs")
    add("load", _load, "import image archives into the nodes").add_argument("archives", nargs="+", type=Path)
    logs = add("logs", _logs, "show the daemons' logs, or one daemon's")
    logs.add_argument("daemon", nargs="?")
    logs.add_argument("--follow", "-f", action="store_true")
    _add_node_option(logs)
    add("kubeconfig", _kubeconfig, "print the path of the administrator's kubeconfig")
    gpus = add("gpus", _gpus, "change the invented GPUs of a running node")
    _add_gpu_options(gpus, count=0)
    _add_node_option(gpus)
    api = add("api-up", _api_up, "run an API-only control plane, without root, until interrupted")
    api.add_argument("--directory", type=Path, help="where its state goes (default: a temporary folder)")
    api.add_argument("--scheduler", action="store_true", help="run kube-scheduler too")
    api.add_argument("--kwok", action="store_true", help="run KWOK too, which plays annotated nodes and their pods")
    return parser


def _add_node_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", type=int, default=0, metavar="INDEX", help="which node (default: 0, the first)")


def _add_gpu_options(parser: argparse.ArgumentParser, count: int | None) -> None:
    parser.add_argument("--gpus", type=int, default=count, metavar="COUNT", help="how many invented GPUs a node has")
    parser.add_argument("--gpu-profile", choices=sorted(PROFILES), default="h100-80gb")
    parser.add_argument(
        "--feature-gates",
        type=gates,
        default={"MPSSupport": True, "TimeSlicingSettings": True},
        metavar="NAME=true,...",
        help="feature gates of the GPUs' DRA driver (default: MPSSupport=true,TimeSlicingSettings=true)",
    )
    add_plugin_options(parser)


def _up(parsed: argparse.Namespace, progress: Progress) -> int:
    if external := external_kubeconfig():
        progress.say("KUBECONFIG is set: that cluster is used, nothing is built")
        print(external)
        return 0
    cluster = up(parsed.name, None if parsed.gpus is None else _chosen_gpus(parsed), progress, parsed.nodes)
    progress.say(f"up: export KUBECONFIG={cluster.kubeconfig} PATH={cluster.programs['kubectl'].parent}:$PATH")
    print(cluster.kubeconfig)
    return 0


def _down(parsed: argparse.Namespace, progress: Progress) -> int:
    found = down(parsed.name)
    progress.say(f"removed {', '.join(found)}" if found else f"nothing of {parsed.name} was left")
    return 0


def _status(parsed: argparse.Namespace, progress: Progress) -> int:
    instance = Instance(parsed.name)
    cluster = running(instance)
    if not cluster:
        print(f"{parsed.name}: not running")
        return 1
    print(f"{parsed.name}: running, API server https://{cluster.addresses.node}:6443")
    for node in cluster.nodes:
        print(f" {node.name}, pods {node.addresses.pods}")
        report: Mapping[str, Mapping[str, object]] = json.loads(node.instance.status.read_text())
        for daemon, state in report.items():
            ended = f", last {state['ended']}" if state["ended"] else ""
            print(f"  {daemon}: {'up' if state['pid'] else 'down'}, started {state['starts']} times{ended}")
    print(cluster.kubectl("get", "nodes", "-o", "wide"), end="")
    return 0


def _load(parsed: argparse.Namespace, progress: Progress) -> int:
    refuse_external("load images into its nodes")
    for node in _running(parsed.name).nodes:
        node.images.load(parsed.archives, progress)
    return 0


def _logs(parsed: argparse.Namespace, progress: Progress) -> int:
    folder = Instance(parsed.name, parsed.node).logs
    logs = sorted(folder.glob(f"{parsed.daemon or '*'}.log"))
    if not logs:
        known = ", ".join(sorted(path.stem for path in folder.glob("*.log"))) or "none"
        raise ClusterError(f"no such log in {folder}", f"choose one of: {known}")
    return subprocess.run(["tail", "-n", "40", *(["-F"] if parsed.follow else []), *logs]).returncode


def _kubeconfig(parsed: argparse.Namespace, progress: Progress) -> int:
    print(external_kubeconfig() or _running(parsed.name).kubeconfig)
    return 0


def _gpus(parsed: argparse.Namespace, progress: Progress) -> int:
    _running(parsed.name).node(parsed.node).set_gpus(_chosen_gpus(parsed))
    return 0


def _chosen_gpus(parsed: argparse.Namespace) -> Gpus:
    try:
        plugin = plugin_config(parsed)
    except Invalid as problem:
        raise ClusterError(f"the device plugin would not start: {problem}", "see --help of this command") from problem
    return Gpus(parsed.gpus, parsed.gpu_profile, parsed.feature_gates, plugin)


def _api_up(parsed: argparse.Namespace, progress: Progress) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="omni-api-") as temporary:
        directory = parsed.directory or Path(temporary)
        with control_plane(directory, scheduler=parsed.scheduler, kwok=parsed.kwok, progress=progress) as kubeconfig:
            print(kubeconfig, flush=True)
            progress.say(f"export KUBECONFIG={kubeconfig}  (ends when interrupted)")
            signal.pause()
    return 0


def _running(name: str) -> Cluster:
    cluster = running(Instance(name))
    if not cluster:
        raise ClusterError(f"the cluster {name} is not running", f"python -m e2e.cluster up --name {name}")
    return cluster


if __name__ == "__main__":
    sys.exit(main())
