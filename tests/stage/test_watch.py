"""How the front tells that a stage is lost, and whom it lets in meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from omni_stage.front.admission import Admission, Gate, Message
from omni_stage.front.watch import MISSES, Event, Look, Pod, look_at, look_of, pods_of, step

from .pods import free_ports, tiny_config

HERE = Look(ready=True, answered=True, instance="one")
OTHER = Look(ready=True, answered=True, instance="two")
LOADING = Look(answered=True, instance="two", detail="loading")
SILENT = Look(detail="unreachable: timed out")
REFUSED = Look(answered=True, detail="unreachable: refused")


@pytest.mark.parametrize(
    ("looks", "events"),
    [
        ([HERE, HERE], [Event.CAME, None]),
        ([LOADING, SILENT, HERE], [None, None, Event.CAME]),
        ([HERE, LOADING, OTHER], [Event.CAME, Event.LOST, Event.CAME]),
        ([HERE, REFUSED], [Event.CAME, Event.LOST]),
        ([HERE, OTHER], [Event.CAME, Event.RESTARTED]),
        ([HERE, SILENT, HERE], [Event.CAME, None, None]),
        ([HERE, *[SILENT] * MISSES], [Event.CAME, *[None] * (MISSES - 1), Event.LOST]),
        ([HERE, SILENT, SILENT, HERE, SILENT, SILENT], [Event.CAME, None, None, None, None, None]),
    ],
)
def test_a_pod_comes_and_goes(looks: list[Look], events: list[Event | None]) -> None:
    pod = Pod("host", 1, ("thinker",))
    seen = []
    for look in looks:
        pod, event = step(pod, look)
        seen.append(event)
    assert seen == events


def test_stages_of_one_supervisor_are_one_pod() -> None:
    config = tiny_config()
    assert [pod.stages for pod in pods_of(config.stages)] == [(s.name,) for s in config.stages]
    assert len(pods_of([config.stages[0], config.stages[0]])) == 1


def test_a_closed_port_counts_as_an_answer() -> None:
    look = look_at(Pod("127.0.0.1", free_ports(1)[0], ("x",)))
    assert (look.ready, look.answered) == (False, True)


def test_a_name_that_does_not_resolve_is_no_answer() -> None:
    look = look_at(Pod("no-such-host.invalid", 1, ("x",)))
    assert (look.ready, look.answered) == (False, False)


@pytest.mark.parametrize("body", [b"", b"[]", b"hello", b'{"ready": true}'])
def test_an_answer_that_is_no_supervisors_is_none(body: bytes) -> None:
    assert look_of(body) == Look(detail="its answer is none of a supervisor")


async def ask(gate: Gate, method: str = "POST", kind: str = "http") -> list[Message]:
    """What the gate sends for one request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect" if kind == "websocket" else "http.request"}

    await gate({"type": kind, "method": method}, receive, send)
    return sent


def app_answering(status: int, admission: Admission | None = None) -> Any:
    """A server that answers with a status; and in the middle of it a stage is lost."""

    async def app(_: Any, __: Any, send: Any) -> None:
        if admission is not None:
            admission.close("stage thinker was lost")
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"the server's"})

    return app


async def test_a_closed_gate_answers_503_and_says_why() -> None:
    start, body = await ask(Gate(app_answering(200), Admission()))
    assert start["status"] == 503
    assert dict(start["headers"])[b"retry-after"] == b"5"
    assert b'"code": "stage_not_ready"' in body["body"]


async def test_a_closed_gate_lets_one_look() -> None:
    assert (await ask(Gate(app_answering(200), Admission()), method="GET"))[0]["status"] == 200


async def test_a_closed_gate_closes_sockets() -> None:
    (message,) = await ask(Gate(app_answering(200), Admission()), kind="websocket")
    assert (message["type"], message["code"]) == ("websocket.close", 1013)


async def test_an_open_gate_lets_through() -> None:
    admission = Admission()
    admission.open()
    start, body = await ask(Gate(app_answering(200), admission))
    assert (start["status"], body["body"]) == (200, b"the server's")


async def test_a_servers_own_error_stays_its_own() -> None:
    admission = Admission()
    admission.open()
    start, body = await ask(Gate(app_answering(500), admission))
    assert (start["status"], body["body"]) == (500, b"the server's")


async def test_a_request_whose_stage_is_lost_under_way_is_told_so() -> None:
    admission = Admission()
    admission.open()
    start, body = await ask(Gate(app_answering(500, admission), admission))
    assert start["status"] == 503
    assert b"stage thinker was lost" in body["body"]
