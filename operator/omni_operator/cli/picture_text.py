"""A card as a bar on the terminal: stages to scale, the KV cache lighter than the weights, the free rest empty.

With colours, each stage is a coloured part; without, each stage has a letter, the KV cache the same letter small. An
overbooked card's bar goes on behind the card's end, which is marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from omni_operator.api.quantities import format_bytes, format_percent
from omni_operator.catalogue import Card
from omni_operator.cli.paint import BAD, BOLD, DIM, PLAIN, Canvas, Line, Span, Style
from omni_operator.planning.pictures import Fill, SlotPicture, apportion

COLORS: tuple[tuple[int, int], ...] = ((75, 153), (214, 223), (79, 158), (176, 225), (186, 230), (109, 152), (173, 224))
"""Background of a stage, and of its KV cache: mid-tones that black text is readable on, on light and dark terminals."""
OVER = Style(fore=231, back=161, bold=True)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_ROWS = 16
"""Stages that a legend lists."""


def slot_lines(
    picture: SlotPicture,
    slots: str,
    canvas: Canvas,
    card: Card | None,
    notes: Mapping[str, str],
    owners: Sequence[str],
) -> list[Line]:
    """The bar of one card and its legend. `slots` names it; `notes` adds words to a stage's row; `owners` of all cards
    decide colours and letters, so that a stage has the same on each."""
    over = picture.total > picture.limit
    title = [
        Span(f"GPU {slots}", BOLD),
        Span(f"  {card.name} {format_bytes(card.memory)}" if card else "  card not known", DIM),
        Span("   "),
        Span(
            f"{format_percent(picture.total, unlike=picture.limit)} of {format_percent(picture.limit)}",
            BAD if over else BOLD,
        ),
        Span(" given away" if not over else " asked for"),
    ]
    return [title, *bar_lines(picture, canvas, owners), *_legend(picture, canvas, card, notes, owners)]


def bar_lines(
    picture: SlotPicture, canvas: Canvas, owners: Sequence[str], used: Mapping[str, Fraction] | None = None
) -> list[Line]:
    """The bar alone. With `used`, how much of its part each owner really takes, a row below shows that."""
    box = Box(canvas)
    columns = canvas.columns - 4
    scale = max(Fraction(1), picture.total)
    card_columns = apportion([Fraction(1)], scale, columns)[0] if scale > 1 else columns
    widths = apportion([band.share for band in picture.bands], scale, columns)
    cells: Line = []
    for band, width in zip(picture.bands, widths, strict=True):
        cells += _cells(owners.index(band.owner), band.owner, band.fill, width, canvas)
    cells = _beyond_marked(cells, card_columns) if canvas.color else cells
    cells.append(Span((box.free * (columns - sum(widths))), DIM))
    lines: list[Line] = [
        [Span(f"  {box.top(columns)}", DIM)],
        [Span(f"  {box.side}", DIM), *cells, Span(box.side, DIM)],
    ]
    if used:
        below = _used_cells(picture, widths, canvas, owners, used)
        lines.append([Span(f"  {box.side}", DIM), *below, Span(" " * (columns - sum(widths)) + box.side, DIM)])
    if scale > 1:
        mark = " " * (2 + card_columns) + (box.end + " the card ends here")
        if len(mark) > canvas.columns:
            mark = ("the card ends here " + box.end).rjust(3 + card_columns)
        return [*lines, [Span(f"  {box.bottom(columns)}", DIM)], [Span(mark, BAD)]]
    return [*lines, [Span(f"  {box.bottom(columns)}", DIM)]]


def _used_cells(
    picture: SlotPicture, widths: Sequence[int], canvas: Canvas, owners: Sequence[str], used: Mapping[str, Fraction]
) -> Line:
    """Under each owner's part, as much of its width as it uses; all of it where it uses more than its part."""
    cells: Line = []
    for owner in picture.owners:
        width = sum(w for band, w in zip(picture.bands, widths, strict=True) if band.owner == owner)
        part = used.get(owner, Fraction(0))
        filled = min(width, max(round(part * width), int(part > 0)))
        style = BAD if part > 1 else Style(fore=COLORS[owners.index(owner) % len(COLORS)][0]) if canvas.color else PLAIN
        cells += [Span(Box(canvas).used * filled, style), Span(" " * (width - filled))]
    return cells


def _beyond_marked(cells: Line, end: int) -> Line:
    """What is behind the card's end loses its colour for that of a mistake."""
    result: Line = []
    column = 0
    for span in cells:
        inside = max(0, min(len(span.text), end - column))
        column += len(span.text)
        if inside:
            result.append(Span(span.text[:inside], span.style))
        if inside < len(span.text):
            result.append(Span(" " * (len(span.text) - inside), OVER))
    return result


def _cells(index: int, owner: str, fill: Fill, width: int, canvas: Canvas) -> Line:
    if not canvas.color:
        letter = LETTERS[index % len(LETTERS)]
        return [Span((letter.lower() if fill is Fill.KV_CACHE else letter) * width)]
    solid, light = COLORS[index % len(COLORS)]
    label = "KV" if fill is Fill.KV_CACHE else owner if fill in (Fill.WHOLE, Fill.WEIGHTS) else ""
    text = f" {label}"[:width].ljust(width) if len(label) + 1 <= width else " " * width
    return [Span(text, Style(fore=16, back=light if fill is Fill.KV_CACHE else solid))]


def _legend(
    picture: SlotPicture, canvas: Canvas, card: Card | None, notes: Mapping[str, str], owners: Sequence[str]
) -> list[Line]:
    names = picture.owners[:MOST_ROWS]
    width = max((len(name) for name in (*names, *picture.unknown, "free")), default=4)
    lines = []
    for name in names:
        share = sum((band.share for band in picture.bands if band.owner == name), Fraction(0))
        lines.append(_row(key_span(owners.index(name), canvas), name, share, card, width, notes.get(name, "")))
    if len(picture.owners) > len(names):
        lines.append([Span(f"      and {len(picture.owners) - len(names)} more", DIM)])
    lines += [
        [Span("    "), Span("? ", BAD), Span(f"{name:{width}}"), Span("  no gpuMemory", DIM)]
        for name in picture.unknown
    ]
    if picture.total <= 1:
        lines.append(_row(Span(Box(canvas).free, DIM), "free", picture.free, card, width, "", DIM))
    else:
        lines.append(_row(Span("!", BAD), "too many", picture.total - picture.limit, card, width, "", BAD))
    return lines


def _row(key: Span, name: str, share: Fraction, card: Card | None, width: int, note: str, style: Style = PLAIN) -> Line:
    amount = f"{format_bytes(int(share * card.memory)):>9}" if card else ""
    words = [Span("    "), key, Span(f" {name:{width}}  {format_percent(share):>7}{amount}", style)]
    return [*words, Span(f"   {note}", DIM)] if note else words


def key_span(index: int, canvas: Canvas) -> Span:
    """What stands for the owner of that index in the bar."""
    if not canvas.color:
        return Span(LETTERS[index % len(LETTERS)])
    return Span(" ", Style(back=COLORS[index % len(COLORS)][0]))


class Box:
    """Characters of a frame."""

    def __init__(self, canvas: Canvas) -> None:
        self.side, self.free, self.end, self.used = ("│", "·", "▲", "▀") if canvas.unicode else ("|", ".", "^", "=")
        self._corners = ("┌┐", "└┘", "─") if canvas.unicode else ("++", "++", "-")

    def top(self, columns: int) -> str:
        """The upper edge."""
        return self._corners[0][0] + self._corners[2] * columns + self._corners[0][1]

    def bottom(self, columns: int) -> str:
        """The lower edge."""
        return self._corners[1][0] + self._corners[2] * columns + self._corners[1][1]
