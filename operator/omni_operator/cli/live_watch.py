"""Looks again and again: a picture that is drawn anew on a terminal, a line for each change anywhere else.

A cluster that does not answer for a while is no end: the last picture stays, and says since when it is old.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Generic, TypeVar

from omni_operator.cli.live_model import LiveModel
from omni_operator.cli.live_text import headline, label
from omni_operator.cli.paint import DIM, UNSURE, Canvas, Line, Span, canvas_for, wrapped

if TYPE_CHECKING:
    from omni_operator.kube.client import KubeError

T = TypeVar("T")

SECONDS = 2.0
PATIENCE_SECONDS = 8.0
"""How long a picture may be old before that is said: less than a call may take, more than the slowest supervisor."""
ENTER = "\x1b[?1049h\x1b[?25l"
"""The terminal's other screen, without a cursor."""
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


@dataclass
class Last(Generic[T]):
    """The newest that was seen, which is left when the watch is interrupted."""

    seen: T | None = None


async def redraw(
    look: Callable[[], Awaitable[T]], draw: Callable[[T, datetime, Canvas], list[Line]], last: Last[T]
) -> None:
    """On a terminal, until interrupted; the last picture then stays on the screen. Raises what the first look does."""
    last.seen = await look()
    sys.stdout.write(ENTER)
    try:
        trouble: Trouble | None = None
        while True:
            now = datetime.now(UTC)
            canvas = canvas_for(sys.stdout)
            lines = draw(last.seen, now, canvas)
            sys.stdout.write(screen(lines, canvas, get_terminal_size().lines, _foot(trouble, canvas)))
            sys.stdout.flush()
            await asyncio.sleep(SECONDS)
            trouble = await _look_again(look, last, trouble)
    finally:
        sys.stdout.write(LEAVE)
        if last.seen is not None:
            canvas = canvas_for(sys.stdout)
            sys.stdout.write(canvas.draw(draw(last.seen, datetime.now(UTC), canvas)))
        sys.stdout.flush()


async def print_changes(
    look: Callable[[], Awaitable[T]], told: Callable[[T | None, T], Sequence[str]], last: Last[T], *, stamped: bool
) -> None:
    """Elsewhere: what `told` says of the first look and then of each change, a line each, until interrupted."""
    trouble: Trouble | None = None
    before: T | None = None
    last.seen = await look()
    while True:
        now = datetime.now(UTC)
        if last.seen is not None:
            for text in told(before, last.seen):
                print(f"{now:%H:%M:%S} {text}" if stamped else text, flush=True)
        before = last.seen
        await asyncio.sleep(SECONDS)
        known = trouble
        trouble = await _look_again(look, last, trouble)
        if trouble is not None and known is None:
            print(f"{trouble}; trying again", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Trouble:
    """The cluster does not answer."""

    since: datetime
    words: str

    def __str__(self) -> str:
        return f"no answer since {self.since:%H:%M:%S} UTC: {self.words}"


def screen(lines: Sequence[Line], canvas: Canvas, rows: int, foot: Sequence[Line] = ()) -> str:
    """A whole screen, drawn over the one before without a flicker; what is too long for it is cut, and that said. The
    foot is never cut."""
    room = max(2, rows - 1 - len(foot))
    if len(lines) > room:
        lines = [*lines[: room - 1], [Span(f"  … {len(lines) - room + 1} more lines below", DIM)]]
    text = canvas.draw([*lines, *foot]).replace("\n", f"{REST_OF_LINE}\n")
    return f"{HOME}{text}{REST_OF_SCREEN}"


def changes(before: LiveModel | None, now: LiveModel) -> list[str]:
    """What is new of one OmniModel: its verdict, and the state of each stage."""
    found = []
    verdict = _verdict(now)
    if before is None or _verdict(before) != verdict:
        found.append(f"{now.name}: {verdict}")
    old = {(row.name, row.replica): (row.state, row.why) for row in (*before.stages, *before.fronts)} if before else {}
    for row in (*now.stages, *now.fronts):
        state = old.pop((row.name, row.replica), None)
        if state != (row.state, row.why):
            came = f"{state[0]} → " if state is not None and state[0] != row.state else ""
            found.append(f"{label(now, row)}: {came}{row.state}{f': {row.why}' if row.why else ''}")
    return [*found, *(f"{name}/{replica}: gone" for name, replica in old)]


def changes_of_all(before: Sequence[LiveModel] | None, now: Sequence[LiveModel]) -> list[str]:
    """What is new of many: their verdicts."""
    old = {(model.namespace, model.name): _verdict(model) for model in before or ()}
    found = []
    for model in now:
        verdict = _verdict(model)
        if old.pop((model.namespace, model.name), None) != verdict:
            found.append(f"{model.namespace}/{model.name}: {verdict}")
    return [*found, *(f"{namespace}/{name}: deleted" for namespace, name in old)]


def _verdict(model: LiveModel) -> str:
    if model.ready:
        return f"Ready {model.stages_ready}".rstrip()
    reason, message = headline(model)
    return f"Not ready: {reason}: {message}"


async def _look_again(look: Callable[[], Awaitable[T]], last: Last[T], trouble: Trouble | None) -> Trouble | None:
    from omni_operator.kube.client import KubeError

    try:
        last.seen = await asyncio.wait_for(look(), PATIENCE_SECONDS)
    except TimeoutError:
        return trouble or Trouble(datetime.now(UTC), f"nothing within {PATIENCE_SECONDS:.0f} s")
    except KubeError as error:
        if not passing(error):
            raise
        return trouble or Trouble(datetime.now(UTC), " ".join(error.message.split())[:200])
    return None


def passing(error: KubeError) -> bool:
    """Whether it may go away by itself."""
    return error.status in (0, 429) or error.status >= 500


def _foot(trouble: Trouble | None, canvas: Canvas) -> list[Line]:
    if trouble is None:
        return []
    return wrapped([Span(f"  {trouble}", UNSURE)], canvas.columns, 2)
