"""One cluster with the operator installed, for all cases; a namespace of its own for each."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from e2e.cluster import Cluster, Gpus, Instance, Progress, down, external_kubeconfig, running
from e2e.deploy import ROOT, Target, install, target, wait_for

Manifest = dict[str, Any]
INSTANCE = os.environ.get("OMNI_CLUSTER", "e2e")
GPUS = Gpus(2, "h100-80gb", {"MPSSupport": True})
CHILDREN = ("pods", "resourceclaims", "services", "networkpolicies")


@pytest.fixture(scope="session")
def operator() -> Iterator[Target]:
    """The operator and the puppet image. OMNI_KEEP=1 leaves our cluster up for a look afterwards."""
    progress = Progress()
    on = target(progress, INSTANCE, GPUS, ("operator", "puppet"))
    install(on, progress)
    yield on
    if external_kubeconfig() is None and not os.environ.get("OMNI_KEEP"):
        down(INSTANCE)


@pytest.fixture(scope="session")
def installed(operator: Target) -> Target:
    """The operator and the stage image, whose first build takes minutes."""
    target(Progress(), INSTANCE, GPUS, ("stage",))
    return operator


def ours() -> Cluster:
    """The cluster of this run, for what only its owner can do. Not where KUBECONFIG names another one."""
    found = running(Instance(INSTANCE))
    assert found is not None, "there is one while a case runs"
    return found


@dataclass(frozen=True)
class Space:
    """A namespace on the cluster."""

    on: Target
    name: str

    def apply(self, manifest: Manifest) -> None:
        self.on.kubectl("apply", "-n", self.name, "-f", "-", stdin=yaml.safe_dump(manifest))

    def model(self, name: str) -> Manifest:
        return self.on.get("omnimodel", name, self.name)

    def condition(self, name: str, kind: str) -> Manifest:
        rows = (self.model(name).get("status") or {}).get("conditions") or []
        return next((row for row in rows if row["type"] == kind), {})

    def stages(self, name: str) -> dict[str, Manifest]:
        return {row["name"]: row for row in (self.model(name).get("status") or {}).get("stages") or []}

    def pods(self) -> list[Manifest]:
        return self.on.items("pods", self.name)

    def children(self) -> dict[str, list[str]]:
        return {kind: [row["metadata"]["name"] for row in self.on.items(kind, self.name)] for kind in CHILDREN}

    def wait(self, what: str, check: Callable[[], Any], seconds: float) -> Any:
        return wait_for(what, check, seconds, self.look)

    def never(self, what: str, check: Callable[[], Any], seconds: float) -> None:
        """Look for so long; raises AssertionError when `check` gives something true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert not check(), f"{what}\n{self.look()}"
            time.sleep(0.5)

    def wait_ready(self, name: str, seconds: float = 420.0) -> None:
        self.wait(f"{name} is Ready", lambda: self.condition(name, "Ready").get("status") == "True", seconds)

    def look(self) -> str:
        """What a person would look at when it does not go on."""
        pods = self.on.kubectl("get", "omnimodels,pods,resourceclaims", "-n", self.name, "-o", "wide")
        events = self.on.kubectl("get", "events", "-n", self.name, "--sort-by=.lastTimestamp").splitlines()[-25:]
        conditions = [
            f"{row['metadata']['name']}: {json.dumps(row.get('status', {}).get('conditions', []))}"
            for row in self.on.items("omnimodels", self.name)
        ]
        return "\n".join([pods, *events, *conditions])


@pytest.fixture
def space(installed: Target) -> Iterator[Space]:
    with new_space(installed) as found:
        yield found


@pytest.fixture(scope="module")
def module_space(installed: Target) -> Iterator[Space]:
    """For cases that look at one running model from several sides."""
    with new_space(installed) as found:
        yield found


@pytest.fixture
def stage(operator: Target) -> Iterator[Space]:
    """For puppets."""
    with new_space(operator) as found:
        yield found


@contextmanager
def new_space(on: Target) -> Iterator[Space]:
    """A namespace, until the end of the block."""
    name = f"case-{uuid.uuid4().hex[:6]}"
    on.kubectl("create", "namespace", name)
    try:
        yield Space(on, name)
    finally:
        # First the models, so that their GPUs are free for the next case: a namespace's own end takes its time.
        on.kubectl("delete", "omnimodels", "--all", "-n", name, "--cascade=foreground", "--timeout=180s")
        on.kubectl("delete", "namespace", name, "--wait=false")


def example(name: str, **spec: Any) -> Manifest:
    """An example's manifest with some of its spec replaced."""
    manifest: Manifest = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    manifest["spec"] |= spec
    return manifest


def held(name: str, **spec: Any) -> Manifest:
    """An example whose containers stay at loading: its weights cannot run here, and are not downloaded."""
    manifest = example(name, development={"hold": "loading"}, **spec)
    manifest["spec"]["model"]["cache"] = {"emptyDir": {}}
    return manifest
