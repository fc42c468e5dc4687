"""Watching: a cluster that is away for a while is no end, an OmniModel that is gone is one."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from omni_operator.cli import live_watch
from omni_operator.cli.documents import BadInput, Place
from omni_operator.cli.live_text import status_lines
from omni_operator.cli.live_watch import ENTER, LEAVE, Last, changes, print_changes, redraw
from omni_operator.kube.client import KubeError
from tests.cli.live_models import model

GONE = BadInput("not found in namespace default", Place("omnimodel qwen3-omni"))
AWAY = KubeError("GET x", 503, "ServiceUnavailable", "etcd is electing")
STARTING = {"talker_ar": ("Starting", "")}
NOT_YET = ("False", "Starting", "6 of 7 stages are ready.")


class Terminal(io.StringIO):
    """Takes what is drawn."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_watch, "SECONDS", 0.0)
    monkeypatch.setenv("NO_COLOR", "1")


def looks(*answers: Any) -> Callable[[], Awaitable[Any]]:
    """A look that has these answers, one after another."""
    left = list(answers)

    async def look() -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


async def test_changes_are_printed_once_and_trouble_too(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = model(STARTING, ready=NOT_YET), model()
    with pytest.raises(BadInput):
        await print_changes(looks(before, before, AWAY, AWAY, after, GONE), changes, Last(), stamped=False)
    out, err = capsys.readouterr()
    assert out.splitlines()[-2:] == ["qwen3-omni: Ready 7/7", "talker_ar: Starting → Ready"]
    assert out.count("Not ready") == 1
    assert err.count("no answer since") == 1
    assert "etcd is electing; trying again" in err


async def test_what_is_wrong_with_the_call_itself_ends_a_watch() -> None:
    with pytest.raises(KubeError):
        await print_changes(looks(model(), KubeError("GET x", 403, "Forbidden", "no")), changes, Last(), stamped=True)


async def test_the_terminal_is_given_back_with_the_last_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    last: Last[Any] = Last()
    with pytest.raises(BadInput):
        await redraw(looks(model(STARTING, ready=NOT_YET), AWAY, model(), GONE), status_lines, last)
    text = terminal.getvalue()
    assert text.startswith(ENTER)
    assert text.count(live_watch.HOME) == 3, "two looks, and the one without an answer"
    assert "no answer since" in text
    screen, after = text.split(LEAVE)
    assert "Starting order" in screen.replace("\x1b[K", "") or "more lines below" in screen
    assert "READY" in after.upper()
    assert "no answer" not in after
    assert last.seen.ready


async def test_a_first_look_that_fails_leaves_the_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    with pytest.raises(BadInput):
        await redraw(looks(GONE), status_lines, Last())
    assert terminal.getvalue() == ""


async def test_a_cluster_that_is_silent_is_told_before_its_call_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_watch, "PATIENCE_SECONDS", 0.05)
    answers = looks(model(), GONE)
    calls = 0

    async def look() -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            await asyncio.Event().wait()
        return await answers()

    with pytest.raises(BadInput):
        await print_changes(look, changes, Last(), stamped=False)
    assert "nothing within 0 s; trying again" in capsys.readouterr().err
