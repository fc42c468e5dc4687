"""The queue's promises."""

from __future__ import annotations

import asyncio

import pytest

from omni_operator.runtime.queue import REST_SECONDS, KeyQueue


async def taken(queue: KeyQueue[str], seconds: float = 0.2) -> str | None:
    try:
        return await asyncio.wait_for(queue.take(), seconds)
    except TimeoutError:
        return None


async def test_a_thousand_adds_are_one() -> None:
    queue: KeyQueue[str] = KeyQueue()
    for _ in range(1000):
        queue.add("a")
    assert len(queue) == 1
    assert await taken(queue) == "a"
    queue.done("a")
    assert await taken(queue) is None


async def test_a_key_is_worked_on_by_one_worker_and_again_if_it_came_meanwhile() -> None:
    queue: KeyQueue[str] = KeyQueue()
    queue.add("a")
    assert await taken(queue) == "a"
    queue.add("a")
    queue.add("b")
    assert await taken(queue) == "b"
    assert await taken(queue) is None, "someone works on it"
    queue.done("a")
    assert await taken(queue) == "a"


async def test_after_its_work_a_key_rests_so_that_the_events_of_its_writes_are_one() -> None:
    now = [100.0]
    queue: KeyQueue[str] = KeyQueue(clock=lambda: now[0])
    queue.add("a")
    assert await taken(queue) == "a"
    queue.add("a")
    queue.done("a")
    assert len(queue) == 0, "also of what came in during the work"
    for _ in range(30):
        queue.add("a")
    queue.add("b")
    assert len(queue) == 1, "another key does not wait"
    now[0] += REST_SECONDS
    assert len(queue) == 2
    now[0] += 1
    assert await taken(queue) == "b"
    queue.done("b")
    now[0] += REST_SECONDS
    queue.add("b")
    assert len(queue) == 2, "a key that was left alone is due at once"


async def test_an_earlier_time_wins() -> None:
    queue: KeyQueue[str] = KeyQueue()
    queue.add_after("a", 60)
    assert await taken(queue) is None
    queue.add("a")
    assert await taken(queue) == "a"
    queue.done("a")
    queue.add("a")
    queue.add_after("a", 60)
    assert await taken(queue) == "a"


async def test_delays_double_up_to_a_limit_and_success_forgets_them() -> None:
    queue: KeyQueue[str] = KeyQueue(jitter=lambda: 0.5)
    delays = [queue.retry("a") for _ in range(12)]
    assert delays[:4] == [0.25, 0.5, 1.0, 2.0]
    assert delays[-1] == 120.0
    queue.forget("a")
    assert queue.retry("a") == 0.25


async def test_a_failing_key_does_not_hold_up_others() -> None:
    queue: KeyQueue[str] = KeyQueue()
    queue.retry("a")
    queue.add("b")
    assert await taken(queue) == "b"


async def test_age_counts_from_when_a_key_was_due() -> None:
    now = [100.0]
    queue: KeyQueue[str] = KeyQueue(clock=lambda: now[0])
    queue.add("a")
    queue.add_after("b", 60)
    now[0] = 107.0
    assert queue.oldest_age() == pytest.approx(7.0)
    assert len(queue) == 1
