"""A plan as an SVG picture, for documents: one bar per card, to scale, with its legend. Text is escaped; no script."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from xml.sax.saxutils import escape, quoteattr

from omni_operator.api.quantities import format_bytes, format_percent
from omni_operator.cli.judge import Judgement
from omni_operator.planning.budget import Verdict
from omni_operator.planning.layout import Layout
from omni_operator.planning.pictures import Fill, SlotPicture, owners_of, pictures

WIDTH = 860
MARGIN = 20
BAR = 44
ROW = 20
COLORS = (
    ("#5fafff", "#afd7ff"), ("#ffaf5f", "#ffd7af"), ("#5fd787", "#afffd7"), ("#d787d7", "#ffd7ff"),
    ("#d7d787", "#ffffaf"), ("#87afaf", "#afd7d7"), ("#d78787", "#ffd7d7"),
)  # fmt: skip
_VERDICTS = {
    Verdict.ACCEPTED: ("Accepted", "#2f9e44"),
    Verdict.UNDECIDED: ("Not decided", "#e67700"),
    Verdict.REFUSED: ("Refused", "#c92a2a"),
}
_STYLE = (
    "text{font:13px ui-sans-serif,system-ui,sans-serif;fill:#212529}.t{font-size:16px;font-weight:600}"
    ".d{fill:#868e96}.b{fill:#212529;font-size:12px}"
    "@media(prefers-color-scheme:dark){text{fill:#e9ecef}.d{fill:#adb5bd}.b{fill:#212529}}"
)


def svg(judgements: Sequence[Judgement]) -> str:
    """All plans below each other in one picture."""
    parts: list[str] = []
    y = MARGIN
    for judgement in judgements:
        y = _plan(parts, judgement, y) + MARGIN
    title = quoteattr(f"GPU memory plan of {', '.join(judgement.name for judgement in judgements)}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
            f'role="img" aria-label={title}>',
            f"<style>{_STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


def _plan(parts: list[str], judgement: Judgement, y: int) -> int:
    word, color = _VERDICTS[judgement.verdict]
    parts.append(_text(MARGIN, y + 14, judgement.name or judgement.source, "t"))
    parts.append(f'<text x="{WIDTH - MARGIN}" y="{y + 14}" text-anchor="end" style="fill:{color}">{word}</text>')
    y += 28
    layout = judgement.layout
    if layout is not None:
        drawn = pictures(layout, judgement.split)
        for picture in drawn:
            y = _slot(parts, picture, layout, owners_of(drawn), y)
    for problem in judgement.problems[:6]:
        text = problem.message if len(problem.message) <= 120 else problem.message[:119] + "…"
        parts.append(_text(MARGIN, y + 14, f"{problem.reason}: {text}", "d"))
        y += ROW
    return y


def _slot(parts: list[str], picture: SlotPicture, layout: Layout, owners: Sequence[str], y: int) -> int:
    card = f"{layout.card.name} {format_bytes(layout.card.memory)}" if layout.card else "card not known"
    sums = f"{format_percent(picture.total, unlike=picture.limit)} of {format_percent(picture.limit)}"
    parts.append(_text(MARGIN, y + 14, f"GPU {picture.slot}: {sums}"))
    parts.append(_text(MARGIN + 170, y + 14, card, "d"))
    y += 22
    whole = WIDTH - 2 * MARGIN
    scale = max(Fraction(1), picture.total)
    x = Fraction(MARGIN)
    for band in picture.bands:
        width = band.share / scale * whole
        solid, light = COLORS[owners.index(band.owner) % len(COLORS)]
        fill = light if band.fill is Fill.KV_CACHE else solid
        label = "KV cache" if band.fill is Fill.KV_CACHE else band.owner
        tip = f"{label} {format_percent(band.share)}"
        parts.append(
            f'<rect x="{_number(x)}" y="{y}" width="{_number(width)}" height="{BAR}" fill="{fill}">'
            f"<title>{escape(tip)}</title></rect>"
        )
        if band.fill is not Fill.OTHER and width > 8 * len(label):
            parts.append(_text(_number(x + 6), y + BAR // 2 + 5, label, "b"))
        x += width
    end = _number(MARGIN + whole / scale)
    over = picture.total > 1
    stroke = "#c92a2a" if over else "#868e96"
    parts.append(
        f'<rect x="{MARGIN}" y="{y}" width="{_number(whole / scale)}" height="{BAR}" fill="none" stroke="{stroke}" '
        f'stroke-width="{2 if over else 1}"/>'
    )
    if over:
        parts.append(
            f'<text x="{end}" y="{y + BAR + 14}" text-anchor="end" style="fill:#c92a2a">the card ends here</text>'
        )
        y += 16
    return _legend(parts, picture, layout, owners, y + BAR + 8)


def _legend(parts: list[str], picture: SlotPicture, layout: Layout, owners: Sequence[str], y: int) -> int:
    x = MARGIN
    for owner in picture.owners:
        share = sum((band.share for band in picture.bands if band.owner == owner), Fraction(0))
        amount = f", {format_bytes(int(share * layout.card.memory))}" if layout.card else ""
        label = f"{owner} {format_percent(share)}{amount}"
        color = COLORS[owners.index(owner) % len(COLORS)][0]
        width = 24 + 7 * len(label)
        if x + width > WIDTH - MARGIN:
            x, y = MARGIN, y + ROW
        parts.append(f'<rect x="{x}" y="{y + 3}" width="12" height="12" fill="{color}"/>')
        parts.append(_text(x + 17, y + 14, label))
        x += width
    return y + ROW + 10


def _text(x: int | str, y: int, text: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x}" y="{y}"{kind}>{escape(text)}</text>'


def _number(value: Fraction) -> str:
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
