"""`make bench`: figures that anyone can repeat, each beside a limit or a peer measured in the same run.

An API-only control plane, the operator's own process, and a bare client that applies the very objects that the operator
renders. Prints a table; `--json FILE` keeps the figures. A benchmark, not a test: machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from e2e.bare_client import Call, Watch, connection
from e2e.bench_start import pods_running
from e2e.cluster import Progress, binaries, control_plane
from e2e.deploy import ROOT
from e2e.figures import Figure, show
from omni_operator.rendering import Settings
from omni_operator.rendering.plan import Plan, plan_for
from omni_stage.contract import HOLD_VARIABLE, PodConfig

EXAMPLE = "qwen3-omni-h100-colocated"
NAMESPACE = "bench"
PATHS = {
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Service": "/api/v1/namespaces/{}/services",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
}
MODELS = f"/apis/omnimodel.io/v1alpha1/namespaces/{NAMESPACE}/omnimodels"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--models", type=int, default=20, help="OmniModels created one after another")
    parser.add_argument("--starts", type=int, default=5, help="pipelines started on a node; none without root")
    parser.add_argument("--json", type=Path, help="where to keep the figures")
    options = parser.parse_args()
    progress = Progress()
    binaries("etcd", "kubernetes", progress=progress)
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder), progress=progress) as kubeconfig:
        figures = [*asyncio.run(children_created(kubeconfig, options.models, progress)), supervisor_memory(progress)]
    if options.starts and os.geteuid() == 0:
        figures += asyncio.run(pods_running(options.starts, progress))
    show(figures)
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2))
    return 0


async def children_created(kubeconfig: Path, count: int, progress: Progress) -> list[Figure]:
    """From creating an OmniModel to its last child, against a bare client that applies the same objects."""
    async with connection(yaml.safe_load(kubeconfig.read_text())) as (call, watch):  # noqa: ASYNC240  # before anything runs
        await call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        crd = yaml.safe_load((ROOT / "crds" / "omnimodel.io_omnimodels.yaml").read_text())
        await call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        await until(lambda: served(call), "the CRD is served")
        bare: list[float] = []
        ours: list[float] = []
        with operator(kubeconfig) as process:
            await asyncio.sleep(5)
            resting = resident(process.pid)
            with progress.step(f"creating {count} OmniModels, each by the operator and by a bare client") as step:
                for i in range(count):
                    ours.append(await by_operator(call, watch, f"ours-{i}"))
                    bare.append(await by_bare_client(call, f"bare-{i}"))
                    step.show(f"{i + 1} of {count}")
            busy = resident(process.pid)
    median, peer = statistics.median(ours), statistics.median(bare)
    spread = f"bare client: {peer:.3f} s; ours from {min(ours):.3f} to {max(ours):.3f} s, {count} runs"
    return [
        Figure("apply to all children created, median", median, "s", 0.3, spread),
        Figure("the same as a ratio to the bare client", median / peer, "times", 2.0, "same objects, same run"),
        Figure(
            "operator at rest, resident", resting / 1e6, "MB", 110.0, f"after {count} OmniModels: {busy / 1e6:.0f} MB"
        ),
    ]


async def by_operator(call: Call, watch: Watch, name: str) -> float:
    """Until the last pod is there: pods are made after all else. Watched: polling would slow it down."""
    manifest = declared(name)
    pods = sum(each["kind"] == "Pod" for each in objects(manifest))
    path = f"{PATHS['Pod'].format(NAMESPACE)}?watch=1&labelSelector=omnimodel.io/name={name}"
    async with watch(path) as events:
        started = time.monotonic()
        await call("POST", MODELS, {**manifest, "metadata": {"name": name}})
        async with asyncio.timeout(60):
            async for event in events:
                pods -= event["type"] == "ADDED"
                if not pods:
                    break
        spent = time.monotonic() - started
    await call("DELETE", f"{MODELS}/{name}")
    return spent


async def by_bare_client(call: Call, name: str) -> float:
    """Server-side apply of the rendered objects, all at once, pods after the rest."""
    rendered = objects(declared(name))
    for manifest in rendered:
        del manifest["metadata"]["ownerReferences"]
    started = time.monotonic()
    for pods in (False, True):
        await asyncio.gather(*(apply(call, manifest) for manifest in rendered if (manifest["kind"] == "Pod") is pods))
    return time.monotonic() - started


async def apply(call: Call, manifest: dict[str, Any]) -> None:
    path = f"{PATHS[manifest['kind']].format(NAMESPACE)}/{manifest['metadata']['name']}?fieldManager=bare&force=true"
    await call("PATCH", path, manifest, "application/apply-patch+yaml")


def declared(name: str) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "examples" / f"{EXAMPLE}.yaml").read_text())
    manifest["metadata"] = {"name": name, "namespace": NAMESPACE, "uid": "0", "generation": 1}
    return manifest


def objects(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    plan = plan_for(manifest, Settings("stage:1"))
    assert isinstance(plan, Plan)
    replicas = [child for children in plan.rendered.replicas.values() for child in children]
    return [json.loads(json.dumps(child.manifest)) for child in (*plan.rendered.shared, *replicas)]


async def served(call: Call) -> bool:
    try:
        await call("GET", MODELS)
    except RuntimeError:
        return False
    return True


async def until(check: Callable[[], Awaitable[bool]], what: str, pause: float = 0.1, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not await check():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(pause)


@contextmanager
def operator(kubeconfig: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "OMNI_STAGE_IMAGE": "stage:1",
        "OMNI_HEALTH_PORT": "0",
        "OMNI_LOG_LEVEL": "ERROR",
    }
    with subprocess.Popen([sys.executable, "-m", "omni_operator.runtime"], env=environment) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def supervisor_memory(progress: Progress) -> Figure:
    """The supervisor alone, holding at loading."""
    with progress.step("starting a supervisor"), tempfile.TemporaryDirectory() as folder:
        pods = [manifest for manifest in objects(declared("m")) if manifest["kind"] == "Pod"]
        text = pods[0]["metadata"]["annotations"]["omnimodel.io/pod-config"]
        PodConfig.from_json(text)
        path = Path(folder) / "pod.json"
        path.write_text(text)
        command = [sys.executable, "-m", "omni_stage", "--config", str(path)]
        environment = {**os.environ, HOLD_VARIABLE: "loading", "PYTHONPATH": str(ROOT / "stage_image")}
        with subprocess.Popen(command, env=environment) as process:
            time.sleep(2)
            used = resident(process.pid)
            process.send_signal(signal.SIGTERM)
    return Figure("stage supervisor, resident", used / 1e6, "MB", 40.0)


def resident(pid: int) -> int:
    """Bytes of resident memory, from /proc."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
