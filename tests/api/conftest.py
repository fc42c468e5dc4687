"""A real kube-apiserver with our CRD, kubectl, and the operator's own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import binaries, control_plane
from tests.api.fault_proxy import FaultProxy, fault_proxy
from tests.conftest import ROOT

Manifest = dict[str, Any]

ROOTS = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "omnimodels": "/apis/omnimodel.io/v1alpha1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "controllerrevisions": "/apis/apps/v1",
}
NODE = "node-a"


@dataclass
class Api:
    """One cluster seen through kubectl."""

    kubeconfig: Path
    namespace: str = "default"
    proxy: str = ""
    binary: Path = field(default_factory=lambda: binaries("kubernetes")["kubectl"])

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(self.binary), "--kubeconfig", str(self.kubeconfig), "-n", self.namespace, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)

    def must(self, *arguments: str, stdin: str | None = None) -> str:
        done = self.kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def apply(self, manifest: Manifest, *, status: bool = False) -> subprocess.CompletedProcess[str]:
        extra = ["--subresource=status"] if status else []
        return self.kubectl(
            "apply", "--server-side", "--force-conflicts", *extra, "-f", "-", stdin=yaml.safe_dump(manifest)
        )

    def call(self, method: str, path: str, body: Manifest | None = None, kind: str = "application/json") -> Any:
        """One HTTP call through `kubectl proxy`: tests poll, and a process for each look is slow."""
        request = urllib.request.Request(
            f"{self.proxy}{path}", json.dumps(body).encode() if body else None, {"Content-Type": kind}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                error.add_note(error.read().decode())
            raise

    def get(self, plural: str, name: str = "") -> Any:
        """An object, None where there is none; without a name, all of its kind in the namespace."""
        try:
            found = self.call("GET", self.path(plural, name))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return found if name else found["items"]

    def path(self, plural: str, name: str = "") -> str:
        return f"{ROOTS[plural]}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def patch_status(self, plural: str, name: str, status: Manifest) -> None:
        path = f"{self.path(plural, name)}/status"
        self.call("PATCH", path, {"status": status}, "application/merge-patch+json")


def wait_for(what: str, check: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Until `check` gives something true; fails with what was waited for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


DEVICE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.nvidia.com"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
}


def install_crd(api: Api) -> None:
    """Ours, and wait until it is served. Too early it has no conditions yet, which kubectl takes for an error."""
    api.must("apply", "--server-side", "-f", str(ROOT / "crds" / "omnimodel.io_omnimodels.yaml"))
    wait = ("wait", "--for=condition=Established", "crd/omnimodels.omnimodel.io", "--timeout=5s")
    wait_for("the CRD is established", lambda: api.kubectl(*wait).returncode == 0)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A control plane without nodes, with our CRD."""
    with control_plane(tmp_path_factory.mktemp("control-plane")) as kubeconfig:
        api = Api(kubeconfig)
        install_crd(api)
        # Without the object, pods bound to it are collected as orphans.
        assert api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}).returncode == 0
        assert api.apply(DEVICE_CLASS).returncode == 0
        yield kubeconfig


@pytest.fixture(scope="session")
def proxy(cluster: Path) -> Iterator[str]:
    command = [str(Api(cluster).binary), "--kubeconfig", str(cluster), "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        yield f"http://{address}"
        process.terminate()


@pytest.fixture
def api(cluster: Path, proxy: str) -> Iterator[Api]:
    """The cluster, in a namespace of the test's own."""
    found = Api(cluster, f"t-{uuid.uuid4().hex[:8]}", proxy)
    found.must("create", "namespace", found.namespace)
    yield found
    found.must("delete", "namespace", found.namespace, "--wait=false", "--ignore-not-found")


@pytest.fixture
def faulty(proxy: str) -> Iterator[FaultProxy]:
    with fault_proxy(proxy) as found:
        yield found


@contextmanager
def operator(api: Api, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """The operator as a process, as its image starts it."""
    settings = {
        "KUBECONFIG": str(api.kubeconfig),
        "OMNI_STAGE_IMAGE": "stage:1",
        "OMNI_NAMESPACE": api.namespace,
        "OMNI_HEALTH_PORT": "0",
        **environment,
    }
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "omni_operator.runtime"], env={**os.environ, **settings}, stdout=sink, stderr=sink
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def running_operator(api: Api, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with operator(api, tmp_path / "operator.log") as process:
        yield process
        if process.poll() is not None:
            pytest.fail((tmp_path / "operator.log").read_text())
