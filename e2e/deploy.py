"""The operator, installed by Helm from its image, on our cluster or on the one that KUBECONFIG names."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e.cluster import DEFAULT_NAME, ClusterError, Gpus, Progress, binaries, external_kubeconfig, up
from e2e.images.build import RECIPES, Builder
from e2e.images.load import load

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "omni-operator"
RELEASE = "omni-operator"
NAMESPACE = "omni-system"
T = TypeVar("T")


DOCKERFILES = {
    "operator": "operator/Dockerfile",
    "stage": "stage_image/Dockerfile",
    "puppet": "e2e/puppet/Dockerfile",
}
"""Of the images that a cluster may be asked to have."""


@dataclass(frozen=True)
class Images:
    """Names by which the cluster knows our images."""

    operator: str
    stage: str
    puppet: str
    operator_digest: str = ""
    """Content of the operator's image, so that the same name with other content is rolled out."""


@dataclass(frozen=True)
class Target:
    """A cluster to install on."""

    kubeconfig: Path
    kubectl_path: Path
    helm_path: Path
    images: Images

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """kubectl's output. Raises ClusterError with its message."""
        return self._run(self.kubectl_path, *arguments, stdin=stdin)

    def helm(self, *arguments: str) -> str:
        """helm's output. Raises ClusterError with its message."""
        return self._run(self.helm_path, *arguments)

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        """The object; empty where there is none."""
        text = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def items(self, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """All of a kind."""
        found: list[dict[str, Any]] = json.loads(
            self.kubectl("get", kind, "-n", namespace, "-l", labels, "-o", "json")
        )["items"]
        return found

    def _run(self, program: Path, *arguments: str, stdin: str | None = None) -> str:
        command = [str(program), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            what = f"`{program.name} {' '.join(arguments)}` failed"
            raise ClusterError(what, "see its message", (done.stderr or done.stdout).splitlines()[-15:])
        return done.stdout


def target(
    progress: Progress,
    name: str = DEFAULT_NAME,
    gpus: Gpus | None = None,
    images: Sequence[str] = ("operator", "stage"),
) -> Target:
    """A cluster that has these images: the user's where KUBECONFIG is set, otherwise ours, built and started."""
    external = external_kubeconfig()
    if external is not None:
        return _external(external, images)
    cluster = up(name, gpus or Gpus(2, "h100-80gb", {"MPSSupport": True}), progress)
    builder = Builder(progress=progress)
    digests = {each: builder.build(RECIPES[each]) for each in images}
    load(cluster, builder.layout, [RECIPES[each] for each in images], progress)
    programs = binaries(progress=progress)
    names = {each: RECIPES[each].name for each in DOCKERFILES}
    digest = digests.get("operator", "")
    return Target(cluster.kubeconfig, programs["kubectl"], programs["helm"], Images(**names, operator_digest=digest))


def _external(kubeconfig: Path, needed: Sequence[str]) -> Target:
    found = {name: shutil.which(name) for name in ("kubectl", "helm")}
    for name, path in found.items():
        if path is None:
            raise ClusterError(f"{name} is not on the PATH", f"install {name}, or unset KUBECONFIG to use our cluster")
    images = {name: os.environ.get(f"OMNI_{name.upper()}_IMAGE", "") for name in DOCKERFILES}
    for name in needed:
        if not images[name]:
            raise ClusterError(
                f"KUBECONFIG is set, but OMNI_{name.upper()}_IMAGE is not",
                f"build {DOCKERFILES[name]}, push it where your cluster can pull it, and name it there",
            )
    return Target(kubeconfig, Path(str(found["kubectl"])), Path(str(found["helm"])), Images(**images))


def install(on: Target, progress: Progress, *values: str) -> None:
    """`helm upgrade --install`, and wait until the operator is ready."""
    with progress.step("installing the chart"):
        operator, stage = _split(on.images.operator), _split(on.images.stage)
        given = [
            f"image.repository={operator[0]}", f"image.tag={operator[1]}",
            f"stageImage.repository={stage[0]}", f"stageImage.tag={stage[1]}",
            f"podAnnotations.omnimodel\\.io/image={on.images.operator_digest}",
            *values,
        ]  # fmt: skip
        try:
            _upgrade(on, given)
        except ClusterError as error:
            pods = on.kubectl("get", "pods", "-n", NAMESPACE, "-o", "wide")
            logs = on.kubectl("logs", "-n", NAMESPACE, f"deployment/{RELEASE}", "--tail=20", "--ignore-errors")
            raise ClusterError(
                "the operator did not become ready",
                "see its log",
                [*error.detail, *pods.splitlines(), *logs.splitlines()],
            ) from error


def _upgrade(on: Target, values: list[str]) -> None:
    on.helm(
        "upgrade", "--install", RELEASE, str(CHART), "-n", NAMESPACE, "--create-namespace", "--wait",
        "--timeout", "90s", *(f"--set={value}" for value in values),
    )  # fmt: skip


def _split(image: str) -> tuple[str, str]:
    name, _, tag = image.rpartition(":")
    return (name, tag) if name and "/" not in tag else (image, "latest")


def wait_for(what: str, check: Callable[[], T], seconds: float, look: Callable[[], str] = lambda: "") -> T:
    """Until `check` gives something true. Raises ClusterError with what was waited for and what `look` sees."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.3)
    raise ClusterError(f"not within {seconds:.0f} s: {what}", "see the state below", look().splitlines())


@contextmanager
def forwarded(on: Target, namespace: str, service: str, port: int) -> Iterator[str]:
    """A URL on loopback that reaches a Service, through `kubectl port-forward`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        local = free.getsockname()[1]
    command = [
        str(on.kubectl_path), "--kubeconfig", str(on.kubeconfig), "-n", namespace,
        "port-forward", f"service/{service}", f"{local}:{port}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "Forwarding" not in line:
                raise ClusterError(f"cannot reach service {service}", "see kubectl's message", [line.strip()])
            yield f"http://127.0.0.1:{local}"
        finally:
            process.terminate()
