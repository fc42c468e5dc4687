"""The operator, and the API server, may end at any moment: the end is always the same."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from e2e.cases.conftest import CHILDREN, Manifest, Space, ours
from e2e.cases.puppets import (
    NAME,
    PROCESSES,
    applied,
    changed,
    claims,
    env,
    pods,
    puppets,
    ready,
    restarts,
    since,
    uids,
)
from e2e.cluster import external_kubeconfig
from e2e.deploy import NAMESPACE, RELEASE

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(external_kubeconfig() is not None, reason="takes the cluster's operator out of it"),
]

KILLS = 50
LONGEST_LIFE = 2.0
"""Seconds. From the start of a process to the end of its first pass goes a good part of one."""
SECONDS = 600.0


def work(namespace: str, image: str) -> None:
    """The operator's process, for one namespace and without a Lease, whose 15 s would be most of the time here."""
    from omni_operator.runtime.operator import run
    from omni_operator.runtime.settings import OperatorSettings

    with suppress(KeyboardInterrupt):
        asyncio.run(run(OperatorSettings(stage_image=image, namespace=namespace, health_port=0, log_level="ERROR")))


class Operator:
    """The operator's code outside of the cluster, where a new process needs no container and no import."""

    def __init__(self, space: Space) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["omni_operator.runtime.operator"])
        self._arguments = (space.name, space.on.images.puppet)
        self.process: Any = None

    def start(self) -> None:
        self.process = self._context.Process(target=work, args=self._arguments, daemon=True)
        self.process.start()

    def kill(self) -> None:
        assert self.process.is_alive(), "it ended by itself"
        self.process.kill()
        self.process.join()


@pytest.fixture
def operator_of_ours(stage: Space, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    """No operator in the cluster until the case ends."""
    monkeypatch.setenv("KUBECONFIG", str(stage.on.kubeconfig))  # read when the client is imported

    def scale(replicas: int) -> None:
        stage.on.kubectl("scale", "deployment", RELEASE, "-n", NAMESPACE, f"--replicas={replicas}")

    scale(0)
    stage.wait("the cluster's operator is gone", lambda: not stage.on.items("pods", NAMESPACE), 60)
    found = Operator(stage)
    found.start()
    yield found
    found.kill()
    scale(1)
    stage.on.kubectl("rollout", "status", f"deployment/{RELEASE}", "-n", NAMESPACE, "--timeout=90s")


def reached(space: Space) -> bool:
    """Whether the newest generation is Ready."""
    found = space.model(NAME)
    rows = (found.get("status") or {}).get("conditions") or []
    row = next((row for row in rows if row["type"] == "Ready"), {"status": ""})
    return bool(row["status"] == "True" and row["observedGeneration"] == found["metadata"]["generation"])


def gone(space: Space) -> bool:
    return space.children() == {kind: [] for kind in CHILDREN}


def delete(space: Space) -> None:
    space.on.kubectl("delete", "omnimodel", NAME, "-n", space.name, "--wait=false")


def life(space: Space) -> Iterator[tuple[str, Callable[[], object], Callable[[Space], bool]]]:
    """What a user does to one OmniModel, over and over: (what, do it, whether it is done)."""
    one: list[Manifest] = [{"name": "talker", "env": env(A="b")}]
    group: list[Manifest] = [*one, {"name": "thinker", "gpuMemory": "70%"}]
    while True:
        yield "start", lambda: applied(space, puppets()), reached
        yield "update of a stage", lambda: applied(space, puppets(one)), reached
        yield "update of the group", lambda: applied(space, puppets(group)), reached
        yield "delete", lambda: delete(space), gone


def check(space: Space, what: str) -> None:
    """The end is the one that an operator which nobody kills comes to."""
    if what == "delete":
        return
    found = pods(space)
    assert set(found) == {*(f"0-{process}" for process in PROCESSES), "0--front"}, what
    assert len(claims(space)) == 1, what
    assert not any(restarts(found).values()), what
    assert not space.model(NAME)["status"].get("groupRestarts"), what
    assert since(found["0-talker"], "PodScheduled") >= since(found["0-thinker"], "Ready"), what


def test_an_operator_killed_at_fifty_moments_always_comes_to_the_same_end(
    stage: Space, operator_of_ours: Operator
) -> None:
    seed = int(os.environ.get("OMNI_SEED") or time.time_ns() % 1_000_000)
    print(f"\nseed {seed} (OMNI_SEED repeats it)")
    moments, began, kills = random.Random(seed), time.time(), 0
    end = time.monotonic() + SECONDS
    done: list[str] = []
    for what, act, is_done in life(stage):
        act()
        while not is_done(stage):
            assert time.monotonic() < end, f"{what} does not come to its end after {kills} kills\n{stage.look()}"
            if kills < KILLS:
                time.sleep(moments.uniform(0, LONGEST_LIFE))
                operator_of_ours.kill()
                kills += 1
                operator_of_ours.start()
            else:
                time.sleep(0.3)
        check(stage, what)
        done.append(what)
        if kills >= KILLS and what == "delete":
            break
    print(f"{kills} kills during {', '.join(done)}")
    assert not any(use.refusals for use in ours().gpu_memory(began).values()), "more memory was asked for than there is"


def test_an_api_server_that_restarts_under_way_changes_nothing(stage: Space) -> None:
    with interrupted():
        applied(stage, puppets())
    ready(stage)
    check(stage, "start")
    before = uids(pods(stage))
    with interrupted():
        applied(stage, puppets([{"name": "talker", "env": env(A="b")}]))
    ready(stage)
    after = pods(stage)
    assert changed(before, uids(after)) == {"0-talker"}
    assert not any(restarts(after).values())
    with interrupted():
        delete(stage)
    stage.wait("nothing is left", lambda: gone(stage), 90)


@contextmanager
def interrupted() -> Iterator[None]:
    """What is done, and the API server's end at once after it."""
    yield
    ours().restart_api_server()
