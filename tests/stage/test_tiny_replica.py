"""The tiny pipeline with a pod for each stage: real SGLang, the real server, the real relay."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from omni_stage.contract import ExitCode

from .pods import alive, in_processes, request, tiny_config
from .replica import Replica, wait_for

pytestmark = [pytest.mark.stage, pytest.mark.xdist_group("replica")]

TRAIL = "[preprocessing > thinker > talker > decode] "
ANSWER = (
    "This tiny model runs on plain processors, so stages, shares and their order can be tested where no GPU exists: "
    "thinker makes each word, talker voices it, decode spells everything."
)
WORDS = 30
POD_MEMORY = 1200 << 20
SUPERVISOR_MEMORY = 40 << 20


def content(answer: Any) -> str:
    """The text of an answer."""
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_an_answer_comes_through_all_stages_in_order(replica: Replica) -> None:
    answer = replica.chat("hello").json()
    assert content(answer) == TRAIL + ANSWER
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == len("user: hello\nassistant:")
    assert answer["usage"]["completion_tokens"] == WORDS + 1


def test_an_answer_can_be_cut_short(replica: Replica) -> None:
    answer = replica.chat(max_tokens=3).json()
    assert content(answer) == TRAIL + "This tiny model"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_streamed_answer_comes_word_by_word_through_talker_and_decode(replica: Replica) -> None:
    events = list(replica.stream())
    assert events[-1][1] is None
    deltas = [event["choices"][0]["delta"].get("content") for _, event in events[:-1]]
    words = [delta for delta in deltas if delta]
    assert words[0] == TRAIL + "This"
    assert "".join(words) == TRAIL + ANSWER
    assert len(words) == WORDS


def test_words_are_not_held_back(replica: Replica) -> None:
    """On a busy machine some come together, so the best of a few tries counts."""
    apart = []
    for _ in range(5):
        events = list(replica.stream())
        apart.append(events[-1][0] - events[0][0])
    assert max(apart) > 0.05


def test_the_server_knows_its_model_and_its_health(replica: Replica) -> None:
    assert request(f"{replica.api}/health").json()["status"] == "healthy"
    assert [m["id"] for m in request(f"{replica.api}/v1/models").json()["data"]] == ["tiny-omni"]


def test_payloads_took_the_relay(replica: Replica) -> None:
    replica.chat("relay")
    for name in ("thinker", "talker", "decode"):
        pod = replica.stages[name]
        wait_for(lambda pod=pod: pod.stage()["gauges"]["relay_transfers"] > 0)
        wait_for(lambda pod=pod: pod.stage()["gauges"]["relay_held_bytes"] == 0)


def test_fifty_at_once_all_come_through(replica: Replica) -> None:
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda n: replica.chat(f"number {n}"), range(50)))
    assert {answer.status for answer in answers} == {200}
    assert {content(answer.json()) for answer in answers} == {TRAIL + ANSWER}


def test_each_pod_is_one_engine_process_and_a_small_supervisor(replica: Replica) -> None:
    for pod in replica.pods:
        stage = pod.stage()
        assert stage["supervisor_memory_bytes"] < SUPERVISOR_MEMORY
        assert stage["memory_bytes"] < POD_MEMORY, stage["process"]


def test_a_stage_that_is_not_heard_of_closes_the_front(replica: Replica) -> None:
    decode = replica.stages["decode"]
    os.kill(decode.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: replica.chat("closed?").status == 503)
        wait_for(lambda: replica.front.get("/readyz").status == 503)
    finally:
        os.kill(decode.pid, signal.SIGCONT)
    replica.wait_ready()
    assert content(replica.chat("open").json()) == TRAIL + ANSWER


def test_requests_in_flight_are_ended_when_their_stage_dies(replica: Replica) -> None:
    talker = replica.stages["talker"]
    engine = engine_pid(talker.pid)
    os.kill(engine, signal.SIGSTOP)  # it takes nothing from its queue, so the request hangs here
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(replica.chat, "hanging")
        time.sleep(1)
        os.kill(engine, signal.SIGKILL)
        assert talker.wait() == ExitCode.ENGINE_LOST
        answer = hanging.result(timeout=30)
    assert answer.status == 503
    assert answer.json()["error"]["code"] == "stage_not_ready"
    assert "talker" in answer.json()["error"]["message"]

    refused = replica.chat("nobody home")
    assert refused.status == 503
    assert "talker" in refused.json()["error"]["message"]
    wait_for(lambda: replica.front.get("/readyz").status == 503)
    assert request(f"{replica.api}/v1/models").status == 200
    for name in ("preprocessing", "thinker", "decode"):
        assert replica.stages[name].get("/readyz").status == 200, f"{name} went down with the talker"

    talker.start()
    replica.wait_ready()
    assert content(replica.chat("again").json()) == TRAIL + ANSWER


def engine_pid(supervisor: int) -> int:
    """The engine process below a supervisor."""
    (pid,) = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return int(pid)


def test_a_stage_told_to_stop_drains_and_comes_back(replica: Replica) -> None:
    thinker = replica.stages["thinker"]
    engine = engine_pid(thinker.pid)
    assert thinker.stop() == ExitCode.DRAINED
    assert not alive(engine)
    wait_for(lambda: replica.chat("closed").status == 503)
    wait_for(lambda: replica.front.get("/readyz").status == 503)
    thinker.start()
    replica.wait_ready()
    assert content(replica.chat("again").json()) == TRAIL + ANSWER


def test_a_front_that_restarts_finds_its_stages(replica: Replica) -> None:
    assert replica.front.stop() == ExitCode.DRAINED
    replica.front.start()
    replica.wait_ready()
    assert content(replica.chat("again").json()) == TRAIL + ANSWER
    words = [e["choices"][0]["delta"].get("content") or "" for _, e in replica.stream() if e]
    assert "".join(words) == TRAIL + ANSWER


def test_stages_may_share_a_process(stage_python: str, tiny_model: Path, tmp_path: Path) -> None:
    config = in_processes(tiny_config(str(tiny_model)), {"decode": "preprocessing", "talker": "preprocessing"})
    shared = Replica(stage_python, config, tmp_path)
    try:
        shared.start()
        assert shared.stages["preprocessing"].stage()["stages"] == ["preprocessing", "talker", "decode"]
        assert content(shared.chat("hello").json()) == TRAIL + ANSWER
        words = [e["choices"][0]["delta"].get("content") or "" for _, e in shared.stream() if e]
        assert "".join(words) == TRAIL + ANSWER
    finally:
        shared.end()
