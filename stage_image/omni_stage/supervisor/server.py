"""The supervisor's HTTP server: /healthz, /readyz, /metrics, /stage."""

from __future__ import annotations

import json
import os
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from omni_stage.contract import PodConfig, StageState
from omni_stage.supervisor import answers, endings, surroundings
from omni_stage.supervisor.status import Status

REQUEST_TIMEOUT_SECONDS = 10
"""A client that sends nothing for so long is cut off."""


class Inquiry:
    """Gathers the facts for one answer."""

    def __init__(self, config: PodConfig, status: Status) -> None:
        self.config, self.status = config, status
        self.last_exit = endings.read()

    def readiness(self) -> dict[str, Any]:
        """The body of /readyz, which is asked for every second: no look at the process table."""
        return answers.readiness(self.status.get(), self.status.instance, self.status.clock())

    def facts(self) -> answers.Facts:
        """Everything."""
        snapshot = self.status.get()
        return answers.Facts(
            config=self.config,
            instance=self.status.instance,
            snapshot=snapshot,
            now=self.status.clock(),
            engine_resident_bytes=surroundings.resident_bytes(os.getpid()),
            own_resident_bytes=surroundings.own_resident_bytes(),
            devices=surroundings.device_uuids(os.environ),
            last_exit=self.last_exit,
        )


class Handler(BaseHTTPRequestHandler):
    """Answers GET; one per connection."""

    inquiry: Inquiry
    timeout = REQUEST_TIMEOUT_SECONDS
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Route by path; a query is ignored."""
        path = self.path.partition("?")[0]
        if path == "/healthz":
            state = self.inquiry.status.get().state
            healthy = state is not StageState.FAILED
            self.answer_json(healthy, {"ok": healthy, "state": state.value})
        elif path == "/readyz":
            body = self.inquiry.readiness()
            self.answer_json(bool(body["ready"]), body)
        elif path == "/stage":
            self.answer_json(True, answers.stage(self.inquiry.facts()))
        elif path == "/metrics":
            body_text = answers.metrics(self.inquiry.facts())
            self.answer(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", body_text)
        else:
            self.answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "/healthz /readyz /stage /metrics\n")

    def answer_json(self, good: bool, body: dict[str, Any]) -> None:
        """200 or 503 with a JSON body."""
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        self.answer(status, "application/json", json.dumps(body) + "\n")

    def answer(self, status: HTTPStatus, content_type: str, body: str) -> None:
        """One whole answer."""
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every second or two; their log lines would be all there is."""


class Server(ThreadingMixIn, HTTPServer):
    """A thread for each connection, none of which keeps the process alive."""

    daemon_threads = True
    request_queue_size = 32

    def server_bind(self) -> None:
        """Bind without the base class's reverse DNS look-up, which may take its time at the start of a pod."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is no news."""


class DualStackServer(Server):
    """Answers over IPv6 and IPv4 alike."""

    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        """Take IPv4 connections on the same socket."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def serve(config: PodConfig, status: Status, port: int) -> Server:
    """Start answering on all addresses; raises OSError where the port is taken."""
    handler = type("BoundHandler", (Handler,), {"inquiry": Inquiry(config, status)})
    try:
        server: Server = DualStackServer(("::", port), handler)
    except OSError:
        server = Server(("0.0.0.0", port), handler)  # no IPv6 in this kernel, or the port is taken
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server
