"""What the launcher makes of sglang-omni's pipelines, by sglang-omni's own planner, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_stage.contract import ExitCode, PodConfig

from .pods import SOURCE, Pod, stage_config, tiny_config

pytestmark = pytest.mark.stage

UNIX_SOCKET = "generation serves /v1/images, /v1/videos, /v1/actions over a Unix socket"
REFUSED = {"cosmos3/default": UNIX_SOCKET, "cosmos3/generation": UNIX_SOCKET}
"""Pipelines that cannot be spread over pods at all."""
NEEDS_SETTINGS = {"qwen3_omni/session", "streaming_cascade/default"}
"""Sessions: sglang-omni has no defaults for them."""
NEEDS_PACKAGES = {"qwen3_tts/default"}
"""Imports a package that only the image for GPUs has."""
KNOWN = 57

Rows = dict[str, Any]


@pytest.fixture(scope="module")
def rows(stage_python: str) -> Rows:
    """See derive_specs.py."""
    script = Path(__file__).with_name("derive_specs.py")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([stage_python, str(script)], capture_output=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found: Rows = json.loads(done.stdout)
    return found


def whole(rows: Rows) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The pipelines with their own processes that have pods."""
    return {name: row for name, row in rows.items() if "/" in name and " " not in name and isinstance(row, dict)}


def port(endpoint: str) -> int:
    """The port of `tcp://…:port`."""
    return int(endpoint.rpartition(":")[2])


def test_every_pipeline_that_can_be_spread_over_pods_is(rows: Rows) -> None:
    pipelines = {name: row for name, row in rows.items() if "/" in name and " " not in name}
    assert len(pipelines) == KNOWN
    refused = {name: row for name, row in pipelines.items() if isinstance(row, str)}
    for name, reason in REFUSED.items():
        assert reason in refused.pop(name)
    for name in NEEDS_SETTINGS:
        assert refused.pop(name) == "ValidationError"
    assert set(refused) <= NEEDS_PACKAGES, refused


def test_every_socket_is_tcp_and_every_port_its_own(rows: Rows) -> None:
    for name, pods in whole(rows).items():
        specs = [spec for pod in pods.values() for spec in pod]
        binds = [spec["bind"] for spec in specs if spec["bind"]] + [spec["rank"][0] for spec in specs if spec["bind"]]
        assert all(bind.startswith("tcp://*:") for bind in binds), name
        relays = [port(spec["relay"]) for spec in specs if spec["bind"]]
        ports = [*map(port, binds), *relays]
        assert len(set(ports)) == len(ports), name
        for spec in specs:
            connects = [spec["coordinator"], spec["abort"], *spec["peers"].values()]
            assert all(endpoint.startswith("tcp://m-0-") for endpoint in connects), name


def test_exactly_the_stages_of_other_pods_are_remote(rows: Rows) -> None:
    for name, pods in whole(rows).items():
        everything = {spec["stage"] for pod in pods.values() for spec in pod}
        for pod in pods.values():
            own = {spec["stage"] for spec in pod}
            assert all(set(spec["remote"]) == everything - own for spec in pod), name


def test_neighbours_may_be_away_for_minutes(rows: Rows) -> None:
    for pods in whole(rows).values():
        assert all(spec["ack_timeout"] >= 300 for pod in pods.values() for spec in pod)


def test_state_that_is_handed_over_in_memory_keeps_its_stages_together(rows: Rows) -> None:
    refusals = [row for name, row in rows.items() if name.startswith("split ") and isinstance(row, str)]
    assert any("state in memory, so both need the same process" in refusal for refusal in refusals)


def test_bytes_become_a_cap_and_a_kv_cache(rows: Rows) -> None:
    specs = {spec["stage"]: spec for pod in rows["bytes"].values() for spec in pod}
    thinker, talker = specs["thinker"], specs["talker_ar"]
    assert (thinker["fraction"], thinker["reserve"], thinker["kv"]) == (None, (81559 << 20) // 10, 1 << 30)
    assert (talker["fraction"], talker["reserve"], talker["kv"]) == (0.1, None, None)


def test_headroom_makes_an_engine_s_share_smaller_and_no_other_stage_s(rows: Rows) -> None:
    specs = {spec["stage"]: spec for pod in rows["headroom"].values() for spec in pod}
    assert (specs["talker_ar"]["fraction"], specs["talker_ar"]["reserve"]) == (pytest.approx(0.09), None)
    assert specs["thinker"]["kv"] == 1 << 30, "given in bytes, it is what was asked for"
    assert specs["thinker"]["reserve"] == (81559 << 20) // 10


def test_shares_that_fill_a_card_fit_it(rows: Rows) -> None:
    specs = [spec for pod in rows["full card"].values() for spec in pod]
    assert sum(spec["fraction"] or 0 for spec in specs) == pytest.approx(1, abs=1e-5)


def test_on_the_cpu_nothing_is_placed(rows: Rows) -> None:
    specs = [spec for pod in rows["cpu"].values() for spec in pod]
    assert {(spec["gpu"], spec["slot"], spec["fraction"], spec["reserve"]) for spec in specs} == {(None,) * 4}


def test_devices_are_numbered_as_the_container_sees_them(rows: Rows) -> None:
    (talker,) = rows["qwen3_omni/speech"]["talker_ar"]
    assert (talker["slot"], talker["gpu"]) == (1, 0)


def test_a_process_on_two_gpus_is_refused_in_sglang_omnis_words(rows: Rows) -> None:
    assert "Process group 'voice' spans multiple GPUs" in rows["two slots in one process"]


def test_ranks_share_a_pod_and_talk_by_unix_sockets(rows: Rows) -> None:
    leader, follower = rows["tensor parallel"]["thinker"]
    assert [(spec["slot"], spec["gpu"]) for spec in (leader, follower)] == [(0, 0), (2, 1)]
    assert leader["rank"][0].startswith("tcp://*:")
    assert leader["rank"][1].startswith("ipc://")
    assert follower["bind"] == ""


def with_thinker(config: PodConfig, **changes: Any) -> PodConfig:
    """A thinker's file with changes to the thinker."""
    stages = tuple(replace(s, **changes) if s.name == "thinker" else s for s in config.stages)
    return stage_config(replace(config, stages=stages), "thinker")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: replace(c, pipeline="nope"), "pipeline: sglang-omni has no 'nope'"),
        (lambda c: replace(c, variant="nope"), "variant: 'tiny_omni' has no 'nope', it has default"),
        (lambda c: replace(c, model_path="/nowhere"), "model_path: there is no /nowhere in this container"),
        (lambda c: replace(c, stages=c.stages[:3]), "stages: decode missing"),
        (
            lambda c: with_thinker(c, engine_args={"max_runing_requests": 1}),
            "engine_args.max_runing_requests: unknown; nearest: max_running_requests",
        ),
        (lambda c: with_thinker(c, engine_args={"max_running_requests": 0}), "max_running_requests"),
    ],
)
def test_what_a_restart_would_repeat_ends_with_78(stage_python: str, tmp_path: Path, change: Any, message: str) -> None:
    config = change(stage_config(tiny_config(str(tmp_path)), "thinker"))
    pod = Pod(config, tmp_path, python=stage_python).start()
    assert pod.wait(120) == ExitCode.BAD_CONFIG
    last = pod.log.read_text().splitlines()[-1]
    assert message in last
