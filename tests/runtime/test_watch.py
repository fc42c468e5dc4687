"""Watching goes on after kopf has ended, and gives up after some quick ends in a row."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from omni_operator.runtime import watch
from omni_operator.runtime.watch import Backoffs, keep_going, owners


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FIRST_DELAY_SECONDS", 0.0)


async def test_it_starts_again_whatever_ended_it() -> None:
    stop, starts = asyncio.Event(), 0

    async def operator() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise ValueError("an answer that kopf does not expect")
        if starts == 3:
            stop.set()

    await keep_going(operator, stop)
    assert starts == 3


async def test_after_some_quick_ends_it_gives_up_and_says_why() -> None:
    starts = 0

    async def operator() -> None:
        nonlocal starts
        starts += 1
        raise ValueError("no such luck")

    with pytest.raises(RuntimeError, match="no such luck"):
        await keep_going(operator, asyncio.Event())
    assert starts == watch.MOST_QUICK_ENDS


def test_delays_between_tries_never_end_and_begin_anew_for_each_call() -> None:
    delays = Backoffs()
    assert list(islice(delays, 8)) == list(islice(delays, 8)) == [0.5, 1, 2, 4, 4, 4, 4, 4]


def test_a_child_concerns_its_owner_and_whom_its_label_names() -> None:
    reference = {"kind": "OmniModel", "name": "a"}
    body = {
        "metadata": {"ownerReferences": [reference, {"kind": "Job", "name": "j"}], "labels": {"omnimodel.io/name": "b"}}
    }
    assert owners(body) == {"a", "b"}
    assert owners({"metadata": {}}) == set()
