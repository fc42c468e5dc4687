"""Pods of a replica as ordinary processes on this machine: distinct ports in place of distinct addresses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from omni_stage.contract import Device, FrontConfig, PodConfig, Role, StageConfig

LOOPBACK = "127.0.0.1"
TINY_STAGES = {"preprocessing": (), "thinker": (0,), "talker": (0,), "decode": ()}
SOURCE = Path(__file__).parents[2] / "stage_image"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def tiny_config(model_path: str = "/nowhere", **changes: Any) -> PodConfig:
    """The front's file of a tiny replica on free ports."""
    ports = iter(free_ports(4 + 4 * len(TINY_STAGES)))
    stages = tuple(
        StageConfig(
            name=name,
            process=name,
            host=LOOPBACK,
            control_port=next(ports),
            rank_port=next(ports),
            relay_port=next(ports),
            supervisor_port=next(ports),
            slots=slots,
        )
        for name, slots in TINY_STAGES.items()
    )
    front = FrontConfig(LOOPBACK, next(ports), next(ports), next(ports), next(ports))
    config = PodConfig(
        role=Role.FRONT,
        name="tiny",
        namespace="default",
        replica=0,
        pipeline="tiny_omni",
        variant="default",
        model_path=model_path,
        served_name="tiny-omni",
        stages=stages,
        front=front,
        device=Device.CPU,
        startup_timeout_seconds=300,
        drain_timeout_seconds=5,
    )
    return replace(config, **changes)


def in_processes(config: PodConfig, processes: dict[str, str]) -> PodConfig:
    """The same replica with some stages in other stages' pods."""
    ports = {stage.name: stage.supervisor_port for stage in config.stages}

    def move(stage: StageConfig) -> StageConfig:
        process = processes.get(stage.name, stage.process)
        return replace(stage, process=process, supervisor_port=ports[process])

    return replace(config, stages=tuple(move(stage) for stage in config.stages))


def stage_config(config: PodConfig, process: str) -> PodConfig:
    """The file of one stage pod of the same replica."""
    return replace(config, role=Role.STAGE, process=process)


class Answer:
    """Status and body of one request."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.body = status, body

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def request(url: str, body: Any = None, timeout: float = 60.0) -> Answer:
    """GET, or POST of JSON. An error status is an answer; no answer raises OSError."""
    data = None if body is None else json.dumps(body).encode()
    call = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(call, timeout=timeout) as response:
            return Answer(response.status, response.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read())


class Pod:
    """One container's PID 1 as a process."""

    def __init__(self, config: PodConfig, folder: Path, *arguments: str, python: str = sys.executable) -> None:
        name = config.process or "front"
        self.config = config
        self.scratch = folder / name
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.log = self.scratch / "log"
        file = self.scratch / "pod.json"
        file.write_text(config.to_json())
        self.command = [python, "-m", "omni_stage", "--config", str(file), *arguments]
        stage = next((s for s in config.stages if s.process == config.process), None)
        port = config.front.supervisor_port if stage is None else stage.supervisor_port
        self.url = f"http://{LOOPBACK}:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> Pod:
        """Start it; again, where it has ended."""
        full = {**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(self.scratch), **environment}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, env=full, stdout=log, stderr=log)
        return self

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        assert self.process is not None
        return self.process.pid

    def wait(self, timeout: float = 30.0) -> int:
        """The exit code."""
        assert self.process is not None
        return self.process.wait(timeout)

    def stop(self) -> int:
        """As the kubelet does: SIGTERM, and the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def end(self) -> None:
        """For clean-up: stop it if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.stop()

    def get(self, path: str) -> Answer:
        """Ask the supervisor; waits for it to listen."""
        return eventually(lambda: request(self.url + path, timeout=5), 10)

    def stage(self) -> dict[str, Any]:
        """/stage."""
        answer: dict[str, Any] = self.get("/stage").json()
        return answer

    def wait_state(self, state: str, timeout: float = 30.0) -> dict[str, Any]:
        """/stage, once it shows this state."""

        def look() -> dict[str, Any]:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(f"ended with {self.process.returncode}:\n{self.tail()}")
            answer = self.stage()
            if answer["state"] != state:
                raise OSError(f"{answer['state']} ({answer['detail']}) is not {state}\n{self.tail()}")
            return answer

        return eventually(look, timeout)

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:]


def eventually(action: Any, timeout: float) -> Any:
    """The action's first result without OSError."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return action()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
