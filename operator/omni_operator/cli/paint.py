"""Coloured text for a terminal, or plain text where there is none. Small on purpose: rich takes 0.1 s to load.

A line is a list of spans; a span has text and a style. NO_COLOR (https://no-color.org), FORCE_COLOR, TERM=dumb and an
output that is no terminal are respected, and so is an encoding without box drawing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

LEAST_COLUMNS = 40
MOST_COLUMNS = 160
DEFAULT_COLUMNS = 100
TIE = "\N{NO-BREAK SPACE}"
"""A space at which no line is broken."""


@dataclass(frozen=True)
class Style:
    """Colours are of the 256-colour palette; None is the terminal's own, which fits light and dark alike."""

    fore: int | None = None
    back: int | None = None
    bold: bool = False
    dim: bool = False


PLAIN = Style()
BOLD = Style(bold=True)
DIM = Style(dim=True)
GOOD = Style(fore=35, bold=True)
BAD = Style(fore=197, bold=True)
UNSURE = Style(fore=172, bold=True)


@dataclass(frozen=True)
class Span:
    """Text in one style."""

    text: str
    style: Style = PLAIN


Line = list[Span]


@dataclass(frozen=True)
class Canvas:
    """What the output can show."""

    columns: int = DEFAULT_COLUMNS
    color: bool = False
    unicode: bool = True

    def draw(self, lines: Iterable[Line]) -> str:
        """The lines as text, with escape codes where there is colour."""
        return "".join(self._line(line) + "\n" for line in lines)

    def _line(self, line: Line) -> str:
        if not self.color:
            return "".join(span.text for span in line).rstrip().replace(TIE, " ")
        return "".join(_escaped(span) for span in line).replace(TIE, " ")


def canvas_for(stream: IO[str], environment: Mapping[str, str] = os.environ) -> Canvas:
    """The canvas of an output stream."""
    terminal = stream.isatty()
    color = terminal and environment.get("TERM") != "dumb"
    if environment.get("FORCE_COLOR"):
        color = True
    if environment.get("NO_COLOR"):
        color = False
    columns = shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns if terminal else _columns(environment)
    encoding = (getattr(stream, "encoding", None) or "ascii").lower()
    return Canvas(max(LEAST_COLUMNS, min(columns, MOST_COLUMNS)), color, encoding.replace("-", "").startswith("utf"))


def wrapped(spans: Line, columns: int, indent: int = 0) -> list[Line]:
    """Breaks a line at spaces; what goes on is indented. A word longer than a line stays whole."""
    lines: list[Line] = [[]]
    used = 0
    for span in spans:
        for i, word in enumerate(span.text.split(" ")):
            gap = " " if i else ""
            if used + len(gap) + len(word) > columns and used > indent:
                lines.append([Span(" " * indent)])
                used, gap = indent, ""
            lines[-1].append(Span(gap + word, span.style))
            used += len(gap) + len(word)
    return lines


def say(text: str) -> None:
    """To standard error: broken at words on a terminal, otherwise a line a message, for other programs."""
    if not sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
        return
    canvas = canvas_for(sys.stderr)
    lines = [line for part in text.split("\n") for line in wrapped([Span(part)], canvas.columns, 2)]
    sys.stderr.write(canvas.draw(lines))


def table(rows: Sequence[Sequence[str]], canvas: Canvas) -> list[Line]:
    """Columns as wide as their widest cell; the last one is wrapped. The first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    indent = sum(widths) + 2 * len(widths) + 2
    lines: list[Line] = []
    for number, row in enumerate(rows):
        style = DIM if number == 0 else PLAIN
        cells = "  " + "".join(f"{cell:{width}}  " for cell, width in zip(row, widths, strict=False))
        lines += wrapped([Span(cells, style), Span(row[-1], style)], canvas.columns, min(indent, canvas.columns // 2))
    return lines


class Remark(Protocol):
    """A note of an import or an export."""

    @property
    def kind(self) -> str: ...
    @property
    def field(self) -> str: ...
    @property
    def message(self) -> str: ...


def notes(remarks: Iterable[Remark], canvas: Canvas) -> list[Line]:
    """One paragraph a note, questions in the colour of questions."""
    lines: list[Line] = []
    for remark in remarks:
        style = UNSURE if remark.kind == "must-be-asked" else DIM
        place = f"{remark.field}: " if remark.field else ""
        lines += wrapped([Span(f"{remark.kind}: ", style), Span(place, DIM), Span(remark.message)], canvas.columns, 2)
    return lines


def _columns(environment: Mapping[str, str]) -> int:
    text = environment.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else DEFAULT_COLUMNS


def _escaped(span: Span) -> str:
    style = span.style
    codes = [code for on, code in ((style.bold, "1"), (style.dim, "2")) if on]
    codes += [f"38;5;{style.fore}"] if style.fore is not None else []
    codes += [f"48;5;{style.back}"] if style.back is not None else []
    return f"\x1b[{';'.join(codes)}m{span.text}\x1b[0m" if codes and span.text else span.text
