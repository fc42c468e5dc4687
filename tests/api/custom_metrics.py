"""A metrics API that Kubernetes can ask about pods, as an adapter for Prometheus would be: the same value for each pod
that a selector finds."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.api.conftest import Api

GROUP, VERSION = "custom.metrics.k8s.io", "v1beta2"


@contextmanager
def metrics_api(api: Api, folder: Path, metric: str, value: str) -> Iterator[None]:
    """Registered with the API server for as long as it is open. `value` is a Kubernetes quantity."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True,
    )  # fmt: skip
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(api, metric, value))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = f"{VERSION}.{GROUP}"
    try:
        for manifest in _registration(api.namespace, name, server.server_port):
            done = api.apply(manifest)
            assert done.returncode == 0, done.stderr
        api.must("wait", "--for=condition=Available", f"apiservice/{name}", "--timeout=30s")
        yield
    finally:
        api.kubectl("delete", "apiservice", name, "--ignore-not-found")
        server.shutdown()
        server.server_close()


def _registration(namespace: str, name: str, port: int) -> list[dict[str, Any]]:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "metrics", "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    spec = {
        "group": GROUP,
        "version": VERSION,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"name": "metrics", "namespace": namespace, "port": port},
    }
    return [service, {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name},
                      "spec": spec}]  # fmt: skip


def _handler(api: Api, metric: str, value: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            selector = parse_qs(url.query).get("labelSelector", [""])[0]
            asked = unquote(url.path).endswith(f"/pods/*/{metric}")
            self.answer(_values(api, metric, value, selector) if asked else _resources(metric))

        def answer(self, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: the test's output is the test's."""

    return Handler


def _resources(metric: str) -> dict[str, Any]:
    row = {"name": f"pods/{metric}", "singularName": "", "namespaced": True, "kind": "MetricValueList",
           "verbs": ["get"]}  # fmt: skip
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": [row]}


def _values(api: Api, metric: str, value: str, selector: str) -> dict[str, Any]:
    names = api.must("get", "pods", "-l", selector, "-o", "jsonpath={.items[*].metadata.name}").split()
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = [
        {
            "describedObject": {"kind": "Pod", "namespace": api.namespace, "name": name, "apiVersion": "v1"},
            "metric": {"name": metric},
            "timestamp": stamp,
            "value": value,
        }
        for name in names
    ]
    return {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}
