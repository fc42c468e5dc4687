"""The supervisor as a real process, over an engine that does as it is told."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_stage.contract import HOLD_VARIABLE, ExitCode, PodConfig, Sharing

from .pods import SOURCE, Pod, alive, eventually, stage_config, tiny_config

ROOT = Path(__file__).parents[2]
ENGINE = Path(__file__).with_name("fake_engine.py")
MAX_RESIDENT = 40 << 20

Starter = Callable[..., Pod]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """Starts a talker's pod whose engine does the given actions."""
    pods: list[Pod] = []

    def starter(*actions: str, config: PodConfig | None = None, quick: str = "", **environment: str) -> Pod:
        """`quick` names a limit of the supervisor's that is one second in this pod."""
        engine = shlex.join([sys.executable, str(ENGINE), *actions])
        pod = Pod(config or stage_config(tiny_config(), "talker"), tmp_path, "--engine", engine)
        if quick:
            modules = "from omni_stage.__main__ import main; from omni_stage.supervisor import supervise"
            pod.command[1:3] = ["-c", f"{modules}; supervise.{quick} = 1; raise SystemExit(main())"]
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
    daemon(tmp_path)
    pod = start("ready", "sleep", **environment)
    stage = pod.wait_state("ready")
    assert stage["device_uuids"] == ["GPU-b", "GPU-a"]
    assert stage["mps"] == {"attached": True, "pipe_directory": str(tmp_path), "reason": ""}


def test_a_pod_that_shares_nothing_needs_no_mps(start: Starter) -> None:
    pod = start("ready", "sleep", NVIDIA_VISIBLE_DEVICES="void")
    stage = pod.wait_state("ready")
    assert pod.get("/readyz").status == 200
    assert stage["device_uuids"] == []
    assert stage["mps"]["attached"] is False
    assert stage["mps"]["reason"].startswith("CUDA_MPS_PIPE_DIRECTORY is not set")


UNDER_MPS: dict[str, Any] = {"sharing": Sharing.MPS}


def daemon(folder: Path) -> None:
    """The socket that a control daemon leaves in its folder."""
    os.mknod(folder / "control", stat.S_IFSOCK | 0o666)


def detail(pod: Pod) -> str:
    """What /readyz says while it answers 503."""
    answer = pod.get("/readyz")
    return str(answer.json()["detail"]) if answer.status == 503 else ""


def test_under_mps_no_engine_starts_before_its_control_daemon_is_there(start: Starter, tmp_path: Path) -> None:
    config = stage_config(tiny_config(**UNDER_MPS), "talker")
    pod = start("ready", "sleep", config=config, CUDA_MPS_PIPE_DIRECTORY=str(tmp_path))
    pod.wait_state("starting")
    assert detail(pod).startswith("sharing is MPS, but the control daemon is not there: No such file")
    assert pod.get("/healthz").status == 200
    assert pod.stage()["mps"]["attached"] is False
    daemon(tmp_path)
    assert pod.wait_state("ready")["mps"]["attached"] is True
    assert pod.get("/readyz").status == 200


def test_a_stage_without_gpus_needs_no_daemon(start: Starter) -> None:
    pod = start("ready", "sleep", config=stage_config(tiny_config(**UNDER_MPS), "decode"))
    pod.wait_state("ready")
    assert pod.get("/readyz").status == 200


def test_without_a_daemon_the_start_is_given_up_and_says_why(start: Starter) -> None:
    config = stage_config(tiny_config(**UNDER_MPS, startup_timeout_seconds=1), "talker")
    pod = start("ready", "sleep", config=config)
    assert pod.wait() == ExitCode.START_TIMEOUT
    assert "sharing is MPS, but CUDA_MPS_PIPE_DIRECTORY is not set" in pod.tail()


def attached(start: Starter, folder: Path, quick: str = "") -> Pod:
    """A pod under MPS whose engine is ready."""
    daemon(folder)
    config = stage_config(tiny_config(**UNDER_MPS), "talker")
    pod = start("ready", "sleep", config=config, quick=quick, CUDA_MPS_PIPE_DIRECTORY=str(folder))
    pod.wait_state("ready")
    assert pod.get("/readyz").status == 200
    return pod


def test_a_stage_whose_daemon_goes_is_not_ready_until_that_very_one_is_back(start: Starter, tmp_path: Path) -> None:
    pod = attached(start, tmp_path)
    (tmp_path / "control").rename(tmp_path / "away")
    eventually(lambda: said(detail(pod), "sharing is MPS, but the control daemon is not there"), 5)
    daemon(tmp_path)
    eventually(lambda: said(detail(pod), "another one than the engine started with"), 5)
    (tmp_path / "away").rename(tmp_path / "control")
    eventually(lambda: said(str(pod.get("/readyz").status), "200"), 5)


def said(text: str, words: str) -> None:
    """For `eventually`."""
    if words not in text:
        raise OSError(f"{words!r} is not in {text!r}")


def test_a_daemon_that_stays_away_is_a_fault_of_the_gpu(start: Starter, tmp_path: Path) -> None:
    pod = attached(start, tmp_path, "DETACHED_SECONDS")
    (tmp_path / "control").unlink()
    assert pod.wait() == ExitCode.CUDA_FAULT
    assert "cuda_fault: sharing is MPS, but the control daemon is not there" in pod.tail()


def test_an_engine_that_was_ready_and_falls_silent_for_good_is_ended(start: Starter) -> None:
    pod = start("ready", "deaf", "sleep", quick="SILENT_SECONDS")
    assert pod.wait() == ExitCode.ENGINE_LOST
    assert "the engine hangs: it was ready, and has said nothing for 1 s" in pod.tail()


def test_an_engine_that_loads_may_be_silent_and_one_that_speaks_is_left_alone(start: Starter) -> None:
    loading = start("detail=weights", "sleep", quick="SILENT_SECONDS")
    speaking = start("ready", "beat=0.2", config=stage_config(tiny_config(), "thinker"), quick="SILENT_SECONDS")
    speaking.wait_state("ready")
    time.sleep(3)
    assert speaking.get("/readyz").status == 200
    assert loading.stage()["state"] == "loading"


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


@pytest.mark.parametrize("dockerfile", ["stage_image/Dockerfile", "e2e/puppet/Dockerfile"])
def test_sigterm_before_the_supervisor_listens_is_not_lost(start: Starter, dockerfile: str, tmp_path: Path) -> None:
    [line] = [line for line in (ROOT / dockerfile).read_text().splitlines() if line.startswith("ENTRYPOINT")]
    blocked = json.loads(line.removeprefix("ENTRYPOINT "))[:2]
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(1)")
    pod = start(f"children={tmp_path}", "ready", "sleep")
    pod.end()
    pod.command = [*blocked, *pod.command]
    (tmp_path / "pids").unlink(missing_ok=True)
    pod.start(PYTHONPATH=f"{tmp_path}:{SOURCE}")
    eventually(lambda: is_blocked(pod.pid, signal.SIGTERM), 5)
    assert pod.stop() == ExitCode.DRAINED
    assert not (tmp_path / "pids").exists(), "no engine is started for a pod that is to stop"


def is_blocked(pid: int, number: int) -> None:
    """Raises OSError until a process has this signal blocked."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = int(next(line for line in lines if line.startswith("SigBlk")).split()[1], 16)
    if not mask >> (number - 1) & 1:
        raise OSError("not yet")


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
