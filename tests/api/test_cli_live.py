"""`kubectl omni status`, `explain` and `logs` on a real API server; a stand-in kubelet and supervisor answer it."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.conftest import Api, wait_for
from tests.api.test_operator import condition, create, declared, play_until_ready
from tests.cli.live_models import stored

pytestmark = pytest.mark.api

STARTING = ("False", "Starting", "6 of 7 stages are ready.")
NAME = "qwen3-omni"
STAGE_POD = "qwen3-omni-0-thinker"
PAGE = {"state": "loading", "detail": "weights 3 of 10", "memory_bytes": 31 * 2**30, "memory_kind": "torch"}


def omni(api: Api, *arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command, as kubectl starts it, in the test's namespace."""
    return subprocess.run(
        command(api, *arguments), capture_output=True, text=True, timeout=60, env=env(api, kubeconfig)
    )


def states(api: Api, name: str) -> dict[str, str]:
    """State of each stage by the status."""
    rows = (api.get("omnimodels", name).get("status") or {}).get("stages") or []
    return {row["name"]: row["state"] for row in rows}


def command(api: Api, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "omni_operator.cli", *arguments, "-n", api.namespace]


def env(api: Api, kubeconfig: Path | None = None) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(kubeconfig or api.kubeconfig), "COLUMNS": "120", "PYTHONUTF8": "1"}


def test_from_refused_to_ready(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    create(api, declared("qwen3-omni-h100-overbooked"))
    create(api, declared("tiny-omni"))
    wait_for("a verdict", lambda: condition(api, "qwen3-omni-overbooked", "Accepted"))
    told = omni(api, "explain", "qwen3-omni-overbooked")
    assert (told.returncode, told.stderr) == (1, "")
    assert "1. Lower gpuMemory of thinker from 88% to 84%" in told.stdout

    waits = {"thinker": "Pending", "talker": "Gated"}
    wait_for("the thinker's turn", lambda: waits.items() <= states(api, "tiny-omni").items())
    shown = omni(api, "status", "tiny-omni")
    assert shown.returncode == 1, shown.stderr
    assert "talker  waits for thinker on GPU 0" in shown.stdout
    assert "GPU 0: thinker (Pending) → talker" in shown.stdout
    log = omni(api, "logs", "tiny-omni", "talker")
    assert (log.returncode, log.stdout) == (1, "")
    assert log.stderr == "talker has no log yet: Gated, waits for thinker on GPU 0\n"

    play_until_ready(api, "tiny-omni")
    shown = omni(api, "status", "tiny-omni")
    assert shown.returncode == 0
    assert "✓ Ready" in shown.stdout
    everything = omni(api, "status", "-o", "json")
    assert everything.returncode == 1, "one of two is not ready"
    rows = {row["name"]: row["ready"] for row in json.loads(everything.stdout)["omniModels"]}
    assert rows == {"qwen3-omni-overbooked": False, "tiny-omni": True}


def test_a_watch_prints_each_change_and_ends_with_the_state(
    api: Api, tmp_path: Path, running_operator: subprocess.Popen[bytes]
) -> None:
    create(api, declared("tiny-omni"))
    wait_for("the talker waits", lambda: states(api, "tiny-omni").get("talker") == "Gated")
    output = tmp_path / "watched"
    with output.open("w") as sink:
        watch = subprocess.Popen(command(api, "status", "tiny-omni", "-w"), stdout=sink, stderr=sink, env=env(api))
        wait_for("a first line", output.read_text)
        play_until_ready(api, "tiny-omni")
        wait_for("it is told", lambda: "tiny-omni: Ready 4/4" in output.read_text())
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 0, output.read_text()
    lines = output.read_text().splitlines()
    assert any(line.endswith("talker: Gated: waits for thinker on GPU 0") for line in lines)
    assert "Traceback" not in output.read_text()


def test_measured_memory_and_logs_come_through_the_api_server(api: Api) -> None:
    with (
        answering(stage_page) as supervisor,
        answering(log_lines, certificates=api.kubeconfig.parent / "pki") as kubelet,
    ):
        running_model(api, supervisor, kubelet)
        shown = omni(api, "status", NAME)
        assert "thinker            78%    62.1Gi      31Gi  Starting" in shown.stdout, shown
        assert "weights 3 of 10" in shown.stdout
        data = yaml.safe_load(omni(api, "status", NAME, "-o", "yaml").stdout)
        assert next(row for row in data["stages"] if row["name"] == "thinker")["measuredBytes"] == 31 * 2**30

        log = omni(api, "logs", NAME, "thinker", "--tail", "5")
        assert (log.returncode, log.stdout) == (0, "stage tailLines=5\n"), log.stderr
        assert omni(api, "logs", NAME, "thinker", "--previous").stdout == "stage previous=true\n"
        wrong = omni(api, "logs", NAME, "thinkr")
        assert wrong.returncode == 2
        assert "did you mean thinker?" in wrong.stderr

        follow = subprocess.Popen(command(api, "logs", NAME, "thinker", "-f"), stdout=subprocess.PIPE, env=env(api))
        assert follow.stdout is not None
        assert follow.stdout.readline() == b"stage follow=true\n", "before the log ends"
        assert follow.stdout.readline() == b"line 0\n"
        follow.send_signal(signal.SIGINT)
        assert follow.wait(20) == 130


def test_who_may_read_less_sees_less_and_is_told(api: Api, tmp_path: Path) -> None:
    with (
        answering(stage_page) as supervisor,
        answering(log_lines, certificates=api.kubeconfig.parent / "pki") as kubelet,
    ):
        running_model(api, supervisor, kubelet)
        nobody = user(api, tmp_path, "nobody")
        shown = omni(api, "status", NAME, kubeconfig=nobody)
        assert shown.returncode == 2
        assert shown.stderr.startswith(f'forbidden: omnimodels.omnimodel.io "{NAME}" is forbidden')
        assert shown.stderr.count("\n") == 1

        viewer = user(api, tmp_path, "viewer", "omnimodels.omnimodel.io")
        shown = omni(api, "status", NAME, kubeconfig=viewer)
        assert "you may not list pods" in shown.stdout, shown
        assert "thinker            78%    62.1Gi            Starting" in shown.stdout
        assert omni(api, "logs", NAME, "thinker", kubeconfig=viewer).returncode == 2

        reader = user(api, tmp_path, "reader", "omnimodels.omnimodel.io", "pods")
        assert "you may not get pods/proxy" in omni(api, "status", NAME, kubeconfig=reader).stdout


def user(api: Api, folder: Path, name: str, *resources: str) -> Path:
    """A kubeconfig of someone who may get and list these resources of the namespace."""
    api.must("create", "serviceaccount", name)
    for i, resource in enumerate(resources):
        api.must("create", "role", f"{name}-{i}", "--verb=get,list", f"--resource={resource}")
        api.must(
            "create", "rolebinding", f"{name}-{i}", f"--role={name}-{i}", f"--serviceaccount={api.namespace}:{name}"
        )
    config = yaml.safe_load(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": api.must("create", "token", name).strip()}
    path = folder / name
    path.write_text(yaml.safe_dump(config))
    return path


def running_model(api: Api, supervisor: tuple[str, int], kubelet: tuple[str, int]) -> None:
    """An OmniModel whose thinker runs, as an operator and a kubelet would have written it; neither is there."""
    manifest = stored({"thinker": ("Starting", "")}, STARTING)
    status = manifest.pop("status")
    manifest["metadata"] = {"name": NAME}
    create(api, manifest)
    api.patch_status("omnimodels", NAME, status)
    node = f"node-of-{api.namespace}"
    create(api, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    endpoint = {"kubeletEndpoint": {"Port": kubelet[1]}}
    addresses = [{"type": "InternalIP", "address": kubelet[0]}]
    patch = {"status": {"addresses": addresses, "daemonEndpoints": endpoint}}
    api.call("PATCH", f"/api/v1/nodes/{node}/status", patch, "application/merge-patch+json")
    owner = {"apiVersion": "omnimodel.io/v1alpha1", "kind": "OmniModel", "name": NAME, "controller": True,
             "uid": api.get("omnimodels", NAME)["metadata"]["uid"]}  # fmt: skip
    labels = {"name": NAME, "component": "stage", "replica": "0", "process": "thinker"}
    port = {"name": "supervisor", "containerPort": supervisor[1]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": STAGE_POD,
            "labels": {f"omnimodel.io/{key}": value for key, value in labels.items()},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": node, "containers": [{"name": "stage", "image": "i", "ports": [port]}]},
    }
    create(api, pod)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    container = {"name": "stage", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
                 "state": {"running": {"startedAt": started}}}  # fmt: skip
    where = {"podIP": supervisor[0], "podIPs": [{"ip": supervisor[0]}]}
    api.patch_status("pods", STAGE_POD, {"phase": "Running", "containerStatuses": [container], **where})


def stage_page(handler: BaseHTTPRequestHandler) -> None:
    assert handler.path == "/stage"
    handler.wfile.write(json.dumps(PAGE).encode())


def log_lines(handler: BaseHTTPRequestHandler) -> None:
    path, _, query = handler.path.partition("?")
    handler.wfile.write(f"{path.rpartition('/')[2]} {query}\n".encode())
    for i in range(100 if "follow" in query else 0):
        handler.wfile.write(f"line {i}\n".encode())
        handler.wfile.flush()
        time.sleep(0.2)


@contextmanager
def answering(
    body: Callable[[BaseHTTPRequestHandler], None], certificates: Path | None = None
) -> Iterator[tuple[str, int]]:
    """A server at an address of this machine that the API server agrees to call: not loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            body(self)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer((own_address(), 0), Handler)
    server.daemon_threads = True
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield str(server.server_address[0]), server.server_port
    finally:
        server.shutdown()
        server.server_close()


def own_address() -> str:
    """Where this machine would send from; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback, which the API server calls no pod at")
        return str(probe.getsockname()[0])
