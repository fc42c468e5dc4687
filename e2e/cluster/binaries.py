"""The cluster's programs, built from the pinned Go modules under `modules/`.

One folder per module set, each with a committed go.mod and go.sum, so that a build fetches exactly what was reviewed.
A set is built once per content (go.mod, go.sum, flags, Go version) into the ignored cache, under a lock, so that any
number of processes may ask at the same time and one of them builds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import BIN, MODULES
from e2e.cluster.locks import exclusive
from e2e.cluster.progress import Progress

FLAGS = ("-trimpath", "-buildvcs=false")
KEPT_BUILDS = 2  # the present one, and the one before it, which a running cluster may still be using


@dataclass(frozen=True)
class ModuleSet:
    """One folder of `modules/`: the programs it makes, and how their version is stamped.

    `module` is the required module whose version counts. `stamps` are the linker's `-X` targets; `{version}`, `{major}`
    and `{minor}` stand for the pinned version, `{kube_major}` and `{kube_minor}` for Kubernetes'. `renamed` gives a
    program another name than the one Go derives from its path.
    """

    name: str
    module: str
    programs: tuple[str, ...]
    stamps: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)


def _kubernetes_stamps() -> dict[str, str]:
    """Without these, the API server calls itself v0.0.0, and every chart with a kubeVersion is refused."""
    values = {"gitVersion": "{version}", "gitMajor": "{major}", "gitMinor": "{minor}", "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.{name}": value for package in packages for name, value in values.items()}


def _helm_stamps() -> dict[str, str]:
    """`helm template` and `helm lint` judge a chart's kubeVersion by what was stamped here, not by a cluster."""
    stamps = {"helm.sh/helm/v3/internal/version.version": "{version}"}
    for package in ("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules"):
        stamps[f"{package}.k8sVersionMajor"] = "{kube_major}"
        stamps[f"{package}.k8sVersionMinor"] = "{kube_minor}"
    return stamps


SETS: dict[str, ModuleSet] = {
    each.name: each
    for each in (
        ModuleSet(
            "kubernetes",
            "k8s.io/kubernetes",
            ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
            _kubernetes_stamps(),
        ),
        ModuleSet("etcd", "go.etcd.io/etcd/server/v3", ("etcd",), renamed={"server": "etcd"}),
        ModuleSet(
            "containerd",
            "github.com/containerd/containerd/v2",
            ("containerd", "containerd-shim-runc-v2", "ctr"),
            {"github.com/containerd/containerd/v2/version.Version": "{version}"},
        ),
        ModuleSet("coredns", "github.com/coredns/coredns", ("coredns",)),
        ModuleSet("helm", "helm.sh/helm/v3", ("helm",), _helm_stamps()),
        ModuleSet("kwok", "sigs.k8s.io/kwok", ("kwok",), {"sigs.k8s.io/kwok/pkg/consts.Version": "{version}"}),
    )
}

NODE_SETS = ("etcd", "containerd", "coredns", "helm", "kubernetes")
CONTROL_PLANE_SETS = ("etcd", "kubernetes")


def binaries(*sets: str, progress: Progress | None = None) -> dict[str, Path]:
    """The paths of the programs of these sets (all that a node needs, if none is named), built if they are missing.

    Raises ClusterError if Go is missing or a build fails.
    """
    shown = progress or Progress()
    paths: dict[str, Path] = {}
    for name in sets or NODE_SETS:
        folder = _built(SETS[name], shown)
        paths.update({program: folder / program for program in SETS[name].programs})
    return paths


def pinned_version(go_mod: str, module: str) -> str:
    """The version, such as `v1.36.3`, at which a go.mod requires a module."""
    found = re.search(rf"^(?:require\s+|\t){re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if not found:
        raise ClusterError(f"go.mod does not require {module}", "restore e2e/cluster/modules from the repository")
    return found.group(1)


def linker_flags(module_set: ModuleSet, version: str, kubernetes: str) -> str:
    """The `-ldflags` value: no symbol tables (they double the size), and the stamped versions."""
    major, minor = version.removeprefix("v").split(".")[:2]
    kube_major, kube_minor = kubernetes.removeprefix("v").split(".")[:2]
    known = {"version": version, "major": major, "minor": minor, "kube_major": kube_major, "kube_minor": kube_minor}
    stamps = [f"-X {target}={value.format(**known)}" for target, value in sorted(module_set.stamps.items())]
    return " ".join(["-s", "-w", *stamps])


def content_key(parts: Mapping[str, str]) -> str:
    """A short name for a build: equal exactly when everything that shapes it is."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(f"{name}\0{parts[name]}\0".encode())
    return digest.hexdigest()[:16]


def _built(module_set: ModuleSet, progress: Progress) -> Path:
    source = MODULES / module_set.name
    go_mod = (source / "go.mod").read_text()
    kubernetes = pinned_version((MODULES / "kubernetes" / "go.mod").read_text(), SETS["kubernetes"].module)
    ldflags = linker_flags(module_set, pinned_version(go_mod, module_set.module), kubernetes)
    key = content_key(
        {
            "go.mod": go_mod,
            "go.sum": (source / "go.sum").read_text(),
            "flags": f"{FLAGS} {ldflags}",
            "renamed": str(sorted(module_set.renamed.items())),
            "go": _go("env", "GOVERSION", "GOOS", "GOARCH", "CGO_ENABLED"),
        }
    )
    folder = BIN / f"{module_set.name}-{key}"
    if folder.is_dir():
        with contextlib.suppress(PermissionError):  # another user's cache serves as well
            os.utime(folder)  # so that the newest folder is the one last used
        return folder
    with exclusive(BIN / f"{module_set.name}.lock", f"builds {module_set.name}", progress):
        if not folder.is_dir():
            _build(module_set, source, ldflags, folder, progress)
            _forget_old_builds(module_set.name)
    return folder


def _build(module_set: ModuleSet, source: Path, ldflags: str, folder: Path, progress: Progress) -> None:
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    total = len(_go("list", "-deps", "tool", folder=source).split())
    command = [_go_program(), "build", "-v", *FLAGS, f"-ldflags={ldflags}", "-o", f"{unfinished}/", "tool"]
    tail: list[str] = []
    with (
        progress.step(f"building {module_set.name} ({', '.join(module_set.programs)})") as step,
        subprocess.Popen(command, cwd=source, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process,
    ):
        for done, line in enumerate(process.stderr or (), start=1):
            tail = [*tail[-30:], line.rstrip()]
            finished = len(list(unfinished.iterdir()))
            step.show(
                f"{done} of at most {total} packages, {finished} of {len(module_set.programs)} programs: {tail[-1]}"
            )
    if process.returncode:
        raise ClusterError(
            f"`go build` of {module_set.name} failed",
            "read the compiler's message; where modules cannot be fetched, point GOPROXY at a proxy that has them",
            [line for line in tail if " " in line][-10:],
        )
    for made, wanted in module_set.renamed.items():
        (unfinished / made).rename(unfinished / wanted)
    unfinished.rename(folder)


def _forget_old_builds(name: str) -> None:
    builds = [path for path in BIN.glob(f"{name}-*") if re.fullmatch(rf"{name}-[0-9a-f]{{16}}", path.name)]
    for old in sorted(builds, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT_BUILDS:]:
        shutil.rmtree(old)


def _go_program() -> str:
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if not found:
        raise ClusterError(
            "Go is not installed: the cluster's programs are built from Go modules",
            "install Go (https://go.dev/dl) and put it on PATH, or set KUBECONFIG to use a cluster that you have",
        )
    return found


def _go(*arguments: str, folder: Path = MODULES / "kubernetes") -> str:
    done = subprocess.run([_go_program(), *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(
            f"`go {' '.join(arguments)}` failed in {folder}",
            "check the Go installation and the module proxy (go env GOPROXY)",
            done.stderr.splitlines()[-10:],
        )
    return done.stdout.strip()
