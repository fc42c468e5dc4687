"""Whatever cluster or kubeconfig the live commands meet: one line, exit code 2, and no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_operator.cli import main
from tests.cli.live_models import stored
from tests.conftest import ROOT

Capture = pytest.CaptureFixture[str]
Answer = Callable[[str], tuple[int, Any]]
STARTING = ("False", "Starting", "3 of 7 stages are ready.")
MODELS = "/apis/omnimodel.io/v1alpha1/namespaces/team/omnimodels"


class Server:
    """Stands in for an API server: `answer` maps a path to status and body."""

    def __init__(self) -> None:
        self.answer: Answer = lambda path: (404, "404 page not found\n")
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                status, body = outer.answer(self.path.partition("?")[0])
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server, and a KUBECONFIG whose context has the namespace `team`."""
    found = Server()
    threading.Thread(target=found.http.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", found.url)))
    yield found
    found.http.shutdown()
    found.http.server_close()


def kubeconfig(path: Path, url: str, **cluster: Any) -> Path:
    data = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
                     {"name": "two", "context": {"cluster": "c", "user": "u", "namespace": "other"}}],
        "current-context": "one",
    }  # fmt: skip
    path.write_text(yaml.safe_dump(data))
    return path


def refused(capsys: Capture, *arguments: str) -> str:
    """The one line that a command ends with."""
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


def status(code: int, reason: str, message: str) -> tuple[int, Any]:
    return code, {"kind": "Status", "reason": reason, "message": message}


COMMANDS = (("status",), ("status", "qwen3-omni"), ("explain", "qwen3-omni"), ("logs", "qwen3-omni", "thinker"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_without_the_kind(server: Server, capsys: Capture, command: tuple[str, ...]) -> None:
    assert refused(capsys, *command) == f"cluster {server.url}: has no kind OmniModel; install it with the chart\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_whoever_may_not(server: Server, capsys: Capture, command: tuple[str, ...]) -> None:
    server.answer = lambda path: status(403, "Forbidden", 'omnimodels is forbidden: User "eve" cannot')
    assert refused(capsys, *command) == 'forbidden: omnimodels is forbidden: User "eve" cannot\n'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, "Unauthorized"), "does not accept these credentials (401)"),
        ((500, {"message": "oh"}), "oh (500)"),
        ((503, ""), "Service Unavailable (503)"),
        ((200, "<html>log in</html>"), "does not answer as an API server of Kubernetes"),
        ((200, ""), ""),
    ],
)
def test_a_server_in_trouble(server: Server, capsys: Capture, answer: tuple[int, Any], words: str) -> None:
    server.answer = lambda path: answer
    if words:
        assert words in refused(capsys, "status")
    else:
        assert main(["status"]) == 0, "an empty list"


def test_no_server_at_all(tmp_path: Path, capsys: Capture) -> None:
    config = str(kubeconfig(tmp_path / "c", "http://127.0.0.1:9"))
    assert "cluster http://127.0.0.1:9: cannot be reached" in refused(capsys, "status", "--kubeconfig", config)


@pytest.mark.parametrize(
    "text", ["", "[]", "x", "a: [", "clusters: []\n", "\x00", "current-context: a\ncontexts: []\nclusters: []\n"]
)
def test_a_kubeconfig_that_is_none(tmp_path: Path, capsys: Capture, text: str) -> None:
    (tmp_path / "c").write_text(text)
    assert refused(capsys, "status", "--kubeconfig", str(tmp_path / "c")).startswith(f"no cluster: {tmp_path}/c")


def test_a_kubeconfig_that_is_not_there(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert refused(capsys, "status") == f"no cluster: no kubeconfig at {tmp_path}/.kube/config\n"
    assert "no kubeconfig at /nope" in refused(capsys, "status", "--kubeconfig", "/nope")


def test_certificates_that_are_not_there(tmp_path: Path, capsys: Capture) -> None:
    config = kubeconfig(tmp_path / "c", "https://127.0.0.1:9", **{"certificate-authority": "/nope.crt"})
    assert "/nope.crt" in refused(capsys, "status", "--kubeconfig", str(config))


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "a/b", "x" * 300, "\x1b[2J"])
def test_names_that_no_object_can_have(server: Server, capsys: Capture, name: str) -> None:
    for command in (("status", name), ("explain", name), ("logs", name, "thinker"), ("status", "-n", name)):
        assert "is not a name of Kubernetes" in refused(capsys, *command)
    assert server.paths == []


def test_the_namespace_is_the_contexts_unless_said(server: Server, capsys: Capture) -> None:
    server.answer = lambda path: (200, {"items": []})
    for arguments, namespace in (([], "team"), (["--context", "two"], "other"), (["-n", "mine"], "mine")):
        assert main(["status", *arguments]) == 0
        assert capsys.readouterr().err == f"No OmniModel in {namespace}.\n"
        assert f"/namespaces/{namespace}/omnimodels" in server.paths[-1]
    assert main(["status", "-A"]) == 0
    assert capsys.readouterr().err == "No OmniModel in the cluster.\n"
    assert server.paths[-1].startswith("/apis/omnimodel.io/v1alpha1/omnimodels")
    assert "Expected object with name three" in refused(capsys, "status", "--context", "three")


def test_a_name_that_is_not_there(server: Server, capsys: Capture) -> None:
    here = {"items": [stored({}, STARTING)]}

    def answer(path: str) -> tuple[int, Any]:
        if path == MODELS:
            return 200, here
        if path.endswith("v1alpha1/omnimodels"):
            return 200, {"items": [{"metadata": {"name": "far", "namespace": "away"}}]}
        return status(404, "NotFound", "not found")

    server.answer = answer
    assert "namespace team; did you mean qwen3-omni?" in refused(capsys, "status", "qwen3-onmi")
    assert "namespace team, but in away: use -n" in refused(capsys, "explain", "far")


def test_pods_that_may_not_be_listed_are_left_out_with_a_note(server: Server, capsys: Capture) -> None:
    def answer(path: str) -> tuple[int, Any]:
        return status(403, "Forbidden", "pods") if path.endswith("/pods") else (200, stored({}, STARTING))

    server.answer = answer
    assert main(["status", "qwen3-omni"]) == 1
    assert "note: No fronts and no measured memory: you may not list pods." in capsys.readouterr().out
    assert main(["status", "qwen3-omni", "-o", "yaml"]) == 1
    assert yaml.safe_load(capsys.readouterr().out)["stagesReady"] == "7/7"


def test_a_replica_that_is_not_there(server: Server, capsys: Capture) -> None:
    server.answer = lambda path: (200, {"items": []} if path.endswith("/pods") else stored({}, STARTING))
    assert "has no replica 4; there are: 0" in refused(capsys, "status", "qwen3-omni", "-r", "4")


def test_only_cluster_commands_load_the_kubernetes_client() -> None:
    code = (
        "import sys; from omni_operator.cli import main; main(sys.argv[1:]); "
        "print([name for name in ('kubernetes', 'aiohttp', 'asyncio') if name in sys.modules])"
    )
    for arguments in (["plan", str(ROOT / "examples/tiny-omni.yaml")], ["status", "--help"], ["logs", "--help"]):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        loaded = done.stdout.splitlines()[-1]
        assert loaded == "[]" if arguments[0] == "plan" else "kubernetes" not in loaded
