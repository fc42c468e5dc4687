"""An API-only control plane: etcd, kube-apiserver, kube-controller-manager and, if wanted, kube-scheduler and KWOK.

It needs no root and no namespaces, listens on one free loopback port, and any number run side by side. A guardian
process (`init.py`) keeps the daemons; it ends, and takes them along, as soon as the process that asked for them is
gone, however that went.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import init
from e2e.cluster.binaries import CONTROL_PLANE_SETS, binaries
from e2e.cluster.daemons import ControlPlanePlan, Spec, control_plane_daemons, spec
from e2e.cluster.errors import ClusterError
from e2e.cluster.pki import Authority, Identity
from e2e.cluster.progress import Progress

HOST = "127.0.0.1"
SERVICES = "10.96.0.0/24"
START_SECONDS = 60.0
PORT_ATTEMPTS = 3


@contextmanager
def control_plane(
    directory: Path, *, scheduler: bool = False, kwok: bool = False, progress: Progress | None = None
) -> Iterator[Path]:
    """Run a control plane with its state in `directory`, which may not exist yet; yields the kubeconfig of its admin.

    The API server is ready by then. With `kwok`, nodes annotated `kwok.x-k8s.io/node: fake`, and pods on them, are
    played. Raises ClusterError if a daemon does not come up.
    """
    sets = (*CONTROL_PLANE_SETS, "kwok") if kwok else CONTROL_PLANE_SETS
    programs = binaries(*sets, progress=progress)
    directory = directory.resolve()
    guardian = _started(directory, programs, scheduler, kwok, progress or Progress(quiet=True))
    try:
        yield directory / "kubeconfig"
    finally:
        guardian.stop()


def _started(
    directory: Path, programs: Mapping[str, Path], scheduler: bool, kwok: bool, progress: Progress
) -> _Guardian:
    """A free port may be taken before the API server binds it, so a few are tried."""
    with progress.step("starting the control plane"):
        for _ in range(PORT_ATTEMPTS):
            plan = _prepare(directory, programs, scheduler, kwok)
            guardian = _Guardian(directory)
            try:
                _wait_until_ready(directory, plan, guardian)
                return guardian
            except _PortTaken:
                guardian.stop()
            except BaseException:
                guardian.stop()
                raise
    raise ClusterError("no loopback port stayed free for the API server", "try again on a quieter machine")


class _PortTaken(Exception):
    """Another process bound the port first."""


def _prepare(directory: Path, programs: Mapping[str, Path], scheduler: bool, kwok: bool) -> ControlPlanePlan:
    for name in ("daemons", "logs", "pki", "etcd"):
        shutil.rmtree(directory / name, ignore_errors=True)
        (directory / name).mkdir(parents=True)
    (directory / "status.json").unlink(missing_ok=True)
    plan = ControlPlanePlan(
        programs=programs,
        pki=directory / "pki",
        logs=directory / "logs",
        state=directory,
        address=HOST,
        port=_free_port(),
        service_cidr=SERVICES,
        scheduler=scheduler,
    )
    authority = issue_control_plane(plan, ("IP:127.0.0.1", "DNS:localhost"))
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(authority.kubeconfig("admin", plan.server, "omni-api"))
    kubeconfig.chmod(0o600)
    daemons = control_plane_daemons(plan)
    if kwok:
        daemons["kwok"] = _kwok(plan, kubeconfig)
    write_daemons(directory / "daemons", daemons)
    return plan


def _kwok(plan: ControlPlanePlan, kubeconfig: Path) -> Spec:
    arguments = [
        f"--kubeconfig={kubeconfig}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
    ]
    home = {"HOME": str(plan.state)}  # it reads a configuration from there; the user's own must not count
    return spec(plan.programs["kwok"], arguments, plan.logs / "kwok.log", [plan.ready], env=home)


def issue_control_plane(plan: ControlPlanePlan, names: tuple[str, ...]) -> Authority:
    """Certificates and kubeconfigs of a control plane that serves under `names` (`IP:…`, `DNS:…`)."""
    authority = Authority.new(plan.pki)
    services = ("DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc")
    authority.issue(Identity("apiserver", "kube-apiserver", alternative_names=(*names, *services)))
    authority.issue(Identity("admin", "admin", "system:masters"))
    authority.issue_signing_keys("service-accounts")
    for name in ("controller-manager", "scheduler"):
        authority.issue(Identity(name, f"system:kube-{name}"))
        authority.write_kubeconfig(name, plan.server, "omni")
    return authority


def write_daemons(folder: Path, daemons: Mapping[str, Spec]) -> None:
    """Hand specs to `init.py`; each file appears whole or not at all."""
    for name, content in daemons.items():
        unfinished = folder / f"{name}.unfinished"
        unfinished.write_text(json.dumps(content, indent=1))
        unfinished.replace(folder / f"{name}.json")


class _Guardian:
    """`init.py` over a folder of daemons. It holds one end of a pipe whose other end only we have: when that closes,
    by us or by our end, it ends and takes its daemons along."""

    def __init__(self, directory: Path) -> None:
        theirs, self._ours = os.pipe()
        with (directory / "logs" / "init.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", init.__file__, str(directory), "--guard", str(theirs)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
                start_new_session=True,  # an interrupt from the keyboard reaches the asking process alone
            )
        os.close(theirs)

    def stop(self) -> None:
        os.close(self._ours)
        self.process.wait()


def _wait_until_ready(directory: Path, plan: ControlPlanePlan, guardian: _Guardian) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not init.answers(plan.ready):
        if guardian.process.poll() is not None:
            raise failed(directory / "logs", "init", "the guardian of the control plane ended")
        if ended := repeatedly_ended(directory / "status.json", {}):
            if "address already in use" in log_text(directory / "logs", "kube-apiserver"):
                raise _PortTaken
            raise failed(directory / "logs", ended, f"{ended} does not stay up")
        if time.monotonic() > deadline:
            raise failed(directory / "logs", "kube-apiserver", f"the API server was not ready in {START_SECONDS:.0f} s")
        time.sleep(0.05)


def starts_of(status: Path) -> dict[str, int]:
    """How often each daemon was started by now."""
    report = json.loads(status.read_text()) if status.exists() else {}
    return {name: each["starts"] for name, each in report.items()}


def repeatedly_ended(status: Path, before: Mapping[str, int], most: int = 1) -> str | None:
    """The first daemon that was started more than `most` times since its starts were as `before`."""
    return next((name for name, now in starts_of(status).items() if now - before.get(name, 0) > most), None)


def failed(logs: Path, daemon: str, problem: str) -> ClusterError:
    """An error that shows the end of a daemon's log."""
    lines = log_text(logs, daemon).splitlines()[-8:]
    return ClusterError(problem, f"read {logs / daemon}.log", [line[:300] for line in lines])


def log_text(logs: Path, daemon: str) -> str:
    """What a daemon has logged, or nothing if it never ran."""
    log = logs / f"{daemon}.log"
    return log.read_text(errors="replace") if log.exists() else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
