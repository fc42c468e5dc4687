"""The puppet under the real supervisor, as processes: every order ends as the engine would that had this happen."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from omni_stage.contract import Device, ExitCode, PodConfig
from tests.stage.pods import SOURCE, Pod, stage_config, tiny_config

ROOT = Path(__file__).parents[2]
PUPPET = ROOT / "e2e" / "puppet"
Starter = Callable[..., Pod]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Dockerfile copies, where it copies it."""
    folder = tmp_path_factory.mktemp("lib")
    shutil.copytree(SOURCE / "omni_stage", folder / "omni_stage", ignore=shutil.ignore_patterns("__pycache__"))
    for line in (PUPPET / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY e2e/"):
            *sources, target = line.split()[1:]
            for source in sources:
                place = folder / target.removeprefix("/opt/omni/lib/")
                place = place / Path(source).name if target.endswith("/") else place
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / source, place)
    return folder


@pytest.fixture
def start(tmp_path: Path, library: Path) -> Iterator[Starter]:
    pods: list[Pod] = []

    def starter(config: PodConfig | None = None, **environment: str) -> Pod:
        pod = Pod(config or stage_config(tiny_config(), "talker"), tmp_path, python=sys.executable)
        pods.append(pod.start(PYTHONPATH=str(library), **environment))
        return pod

    yield starter
    for pod in pods:
        pod.end()


def order(pod: Pod, text: str) -> None:
    (pod.scratch / "puppet").write_text(f"{text}\n")


def test_it_is_ready_at_once_or_when_it_is_told_to(start: Starter) -> None:
    config = tiny_config()
    talker, thinker = stage_config(config, "talker"), stage_config(config, "thinker")
    late = start(thinker, PUPPET_READY_AFTER="1.5")
    assert start(talker).wait_state("ready")["ready_after_seconds"] < 1.5
    assert late.wait_state("ready")["ready_after_seconds"] >= 1.5


def test_it_holds_its_budget_on_every_gpu(start: Starter) -> None:
    config = stage_config(tiny_config(device=Device.CUDA), "thinker")
    stages = tuple(replace(s, memory_bytes=10 << 30) if s.name == "thinker" else s for s in config.stages)
    pod = start(replace(config, stages=stages))
    told = pod.wait_state("ready")
    assert (told["memory_bytes"], told["memory_kind"]) == (10 << 30, "torch")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("exit-out-of-budget", ExitCode.OUT_OF_BUDGET),
        ("exit-cuda-fault", ExitCode.CUDA_FAULT),
        ("exit-lost", ExitCode.ENGINE_LOST),
        ("exit-peer-lost", ExitCode.PEER_LOST),
        ("exit-bad-config", ExitCode.BAD_CONFIG),
        ("dance", ExitCode.BAD_CONFIG),
    ],
)
def test_an_order_to_end_gives_the_code_of_its_cause(start: Starter, text: str, code: ExitCode) -> None:
    pod = start()
    pod.wait_state("ready")
    order(pod, text)
    assert pod.wait() == code


def test_each_line_ends_one_container(start: Starter, library: Path) -> None:
    pod = start()
    pod.wait_state("ready")
    order(pod, "exit-lost\nexit-cuda-fault")
    assert pod.wait() == ExitCode.ENGINE_LOST
    pod.start(PYTHONPATH=str(library))
    assert pod.wait() == ExitCode.CUDA_FAULT


def test_a_start_that_hangs_is_given_up(start: Starter) -> None:
    config = replace(stage_config(tiny_config(), "talker"), startup_timeout_seconds=1)
    assert start(config, PUPPET_AT_START="never-ready").wait() == ExitCode.START_TIMEOUT


def test_the_front_is_ready_when_its_stages_are(start: Starter) -> None:
    config = tiny_config()
    front = start(config)
    front.wait_state("loading")
    for process in ("preprocessing", "thinker", "talker", "decode"):
        start(stage_config(config, process))
    front.wait_state("ready")
