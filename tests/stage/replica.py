"""A whole tiny replica: the front and a pod for each stage, as processes on loopback."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omni_stage.contract import PodConfig

from .pods import LOOPBACK, Answer, Pod, eventually, request, stage_config

READY_SECONDS = 240


class Replica:
    """Started all at once; who needs whom sorts itself out."""

    def __init__(self, python: str, config: PodConfig, folder: Path) -> None:
        self.config = config
        self.front = Pod(config, folder, python=python)
        self.stages = {
            process: Pod(stage_config(config, process), folder, python=python)
            for process in dict.fromkeys(stage.process for stage in config.stages)
        }
        """By process, which is the stage's name where a stage has a pod of its own."""
        self.api = f"http://{LOOPBACK}:{self.config.front.api_port}"

    @property
    def pods(self) -> list[Pod]:
        """All of them."""
        return [self.front, *self.stages.values()]

    def start(self) -> None:
        """Until the front is ready."""
        for pod in self.pods:
            pod.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until the front is ready, which it is when all stages are."""
        self.front.wait_state("ready", READY_SECONDS)

    def end(self) -> None:
        """Stop everything."""
        for pod in self.pods:
            pod.end()

    def chat(self, content: str = "hello", **more: Any) -> Answer:
        """POST /v1/chat/completions."""
        return request(f"{self.api}/v1/chat/completions", self.body(content, **more))

    def body(self, content: str, **more: Any) -> dict[str, Any]:
        """The request."""
        return {"model": "tiny-omni", "messages": [{"role": "user", "content": content}], **more}

    def stream(self, content: str = "hello", **more: Any) -> Iterator[tuple[float, Any]]:
        """The events of a streamed answer with the seconds at which they came; `[DONE]` as None."""
        connection = http.client.HTTPConnection(LOOPBACK, self.config.front.api_port, timeout=60)
        began = time.monotonic()
        body = json.dumps(self.body(content, stream=True, **more))
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response, pending = connection.getresponse(), b""
        while data := response.read1():  # what has come, without waiting for more
            *lines, pending = (pending + data).split(b"\n")
            for payload in (line[len(b"data: ") :] for line in lines if line.startswith(b"data: ")):
                yield time.monotonic() - began, None if payload.strip() == b"[DONE]" else json.loads(payload)
        connection.close()


def wait_for(condition: Any, timeout: float = 30.0) -> None:
    """Until the condition holds."""

    def look() -> None:
        if not condition():
            raise OSError("not yet")

    eventually(look, timeout)
