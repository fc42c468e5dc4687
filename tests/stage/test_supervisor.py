"""The supervisor as a real process, over an engine that does as it is told."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from omni_stage.contract import HOLD_VARIABLE, ExitCode, PodConfig

from .pods import Pod, alive, eventually, stage_config, tiny_config

ENGINE = Path(__file__).with_name("fake_engine.py")
MAX_RESIDENT = 40 << 20

Starter = Callable[..., Pod]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Starts a talker's pod whose engine does the given actions."""
    pods: list[Pod] = []

    def starter(*actions: str, config: PodConfig | None = None, **environment: str) -> Pod:
        engine = shlex.join([sys.executable, str(ENGINE), *actions])
        pod = Pod(config or stage_config(tiny_config(), "talker"), tmp_path, "--engine", engine)
        pods.append(pod.start(**environment))
        return pod

    yield starter
    for pod in pods:
        pod.end()


def test_an_engine_that_is_ready_makes_the_pod_ready(start: Starter) -> None:
    pod = start("detail=the others", "gauge=active_requests:3", "ready", "sleep")
    stage = pod.wait_state("ready")
    assert pod.get("/readyz").status == 200
    assert pod.get("/healthz").status == 200
    assert stage["stages"] == ["talker"]
    assert stage["gauges"] == {"active_requests": 3.0}
    assert stage["memory_kind"] == "resident"
    assert stage["memory_bytes"] > 1 << 20
    assert stage["ready_after_seconds"] >= 0


def test_a_pod_is_alive_but_not_ready_while_its_engine_loads(start: Starter) -> None:
    pod = start("detail=weights", "sleep")
    pod.wait_state("loading")
    answer = eventually(lambda: pod.get("/readyz"), 5)
    assert answer.status == 503
    assert pod.get("/healthz").status == 200
    assert pod.get("/nothing").status == 404


def test_the_supervisor_stays_small(start: Starter) -> None:
    pod = start("ready", "sleep")
    pod.wait_state("ready")
    for _ in range(50):
        pod.get("/stage")
        pod.get("/metrics")
    assert pod.stage()["supervisor_memory_bytes"] < MAX_RESIDENT


def test_metrics_are_prometheus_text(start: Starter) -> None:
    pod = start("gauge=relay_sent_bytes:7", "ready", "sleep")
    pod.wait_state("ready")
    text = pod.get("/metrics").body.decode()
    labels = 'model="tiny",role="stage",process="talker"'
    assert f"omni_stage_ready{{{labels}}} 1\n" in text
    assert f'omni_stage_state{{{labels},state="ready"}} 1\n' in text
    assert f"omni_stage_relay_sent_bytes{{{labels}}} 7\n" in text


def test_the_pod_tells_what_it_sees_of_gpus_and_mps(start: Starter, tmp_path: Path) -> None:
    environment = {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a",
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path),
    }
    pod = start("ready", "sleep", **environment)
    stage = pod.wait_state("ready")
    assert stage["device_uuids"] == ["GPU-a", "GPU-b"]
    assert stage["mps"] == {"attached": True, "pipe_directory": str(tmp_path)}


def test_a_pipe_folder_that_is_not_there_is_no_attachment(start: Starter) -> None:
    pod = start("ready", "sleep", CUDA_MPS_PIPE_DIRECTORY="/nowhere/nvidia-mps", NVIDIA_VISIBLE_DEVICES="void")
    stage = pod.wait_state("ready")
    assert stage["device_uuids"] == []
    assert stage["mps"]["attached"] is False


@pytest.mark.parametrize(
    ("actions", "code"),
    [
        (["fail=crash:torch.OutOfMemoryError: CUDA out of memory.", "exit=1"], ExitCode.OUT_OF_BUDGET),
        (["ready", "stderr=RuntimeError: CUDA error: unspecified launch failure", "kill=6"], ExitCode.CUDA_FAULT),
        (["fail=peer_lost:r1 was not taken over", "exit=1"], ExitCode.PEER_LOST),
        (["fail=config:stages.talker: nonsense", "exit=78"], ExitCode.BAD_CONFIG),
        (["exit=0"], ExitCode.ENGINE_LOST),
        (["ready", "kill=9"], ExitCode.ENGINE_LOST),
        (["quiet", "exit=3"], ExitCode.ENGINE_LOST),
    ],
)
def test_the_exit_code_tells_the_cause(start: Starter, actions: list[str], code: ExitCode) -> None:
    assert start(*actions).wait() == code


def test_the_next_container_knows_how_this_one_ended(start: Starter) -> None:
    pod = start("fail=crash:torch.OutOfMemoryError: CUDA out of memory.", "exit=1")
    assert pod.wait() == ExitCode.OUT_OF_BUDGET
    pod.command[-1] = shlex.join([sys.executable, str(ENGINE), "ready", "sleep"])
    pod.start()
    last = pod.wait_state("ready")["last_exit"]
    assert (last["code"], last["cause"]) == (71, "out_of_budget")
    assert "CUDA out of memory" in last["reason"]


def test_sigterm_stops_the_engine_and_ends_with_zero(start: Starter) -> None:
    pod = start("ready", "sleep")
    pod.wait_state("ready")
    assert pod.stop() == ExitCode.DRAINED


def test_a_pod_that_drains_is_not_ready(start: Starter) -> None:
    config = replace(stage_config(tiny_config(), "talker"), drain_timeout_seconds=1)
    pod = start("deaf", "ready", "sleep", config=config)
    pod.wait_state("ready")
    os.kill(pod.pid, signal.SIGTERM)
    pod.wait_state("draining", 5)
    assert pod.get("/readyz").status == 503
    assert pod.get("/healthz").status == 200


def test_an_engine_that_does_not_stop_is_killed_with_all_it_started(start: Starter, tmp_path: Path) -> None:
    config = replace(stage_config(tiny_config(), "talker"), drain_timeout_seconds=1)
    pod = start("deaf", f"children={tmp_path}", "ready", "sleep", config=config)
    pod.wait_state("ready")
    children = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(alive(pid) for pid in children)
    began = time.monotonic()
    assert pod.stop() == ExitCode.DRAINED
    assert time.monotonic() - began < 15
    assert not any(alive(pid) for pid in children)


def test_an_engine_that_ends_leaves_nothing_behind(start: Starter, tmp_path: Path) -> None:
    pod = start(f"children={tmp_path}", "exit=1")
    assert pod.wait() == ExitCode.ENGINE_LOST
    assert not any(alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_an_engine_that_never_gets_ready_is_given_up(start: Starter) -> None:
    config = replace(stage_config(tiny_config(), "talker"), startup_timeout_seconds=1)
    pod = start("deaf", "sleep", config=config)
    assert pod.wait() == ExitCode.START_TIMEOUT


def test_a_front_that_waits_for_its_stages_is_not_given_up(start: Starter) -> None:
    pod = start("detail=thinker: loading", "sleep", config=tiny_config(startup_timeout_seconds=1))
    pod.wait_state("loading")
    time.sleep(2)
    stage = pod.stage()
    assert (stage["state"], stage["detail"]) == ("loading", "thinker: loading")


def test_held_at_loading_no_engine_is_started(start: Starter, tmp_path: Path) -> None:
    config = replace(stage_config(tiny_config(), "talker"), startup_timeout_seconds=1)
    pod = start(f"children={tmp_path}", "ready", config=config, **{HOLD_VARIABLE: "loading"})
    time.sleep(1.5)
    stage = pod.wait_state("loading")
    assert stage["memory_bytes"] == 0
    assert pod.get("/readyz").status == 503
    assert pod.get("/healthz").status == 200
    assert not (tmp_path / "pids").exists()
    assert pod.stop() == ExitCode.DRAINED


def test_a_file_that_cannot_be_used_ends_the_pod_at_once(start: Starter) -> None:
    config = stage_config(tiny_config(), "nobody")
    pod = start("sleep", config=replace(config, process="nobody"))
    assert pod.wait() == ExitCode.BAD_CONFIG
    lines = pod.log.read_text().splitlines()
    assert len(lines) == 1
    assert "process: 'nobody' is none of decode, preprocessing, talker, thinker" in lines[0]


def test_a_port_that_is_taken_is_named(start: Starter) -> None:
    first = start("ready", "sleep")
    first.wait_state("ready")
    second = start("sleep", config=first.config)
    assert second.wait() == ExitCode.BAD_CONFIG
    assert "cannot be listened on" in second.log.read_text()


def test_each_start_is_another_instance(start: Starter) -> None:
    pod = start("ready", "sleep")
    before = pod.wait_state("ready")["instance"]
    pod.stop()
    pod.start()
    assert pod.wait_state("ready")["instance"] != before
