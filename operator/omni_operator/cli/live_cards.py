"""The cards of a running OmniModel on the terminal: what each stage may take, beside what it does take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from omni_operator.api.enums import Enforcer
from omni_operator.api.quantities import format_bytes, format_percent
from omni_operator.catalogue import Card
from omni_operator.cli.live_model import LiveCard, LiveModel, LiveStage
from omni_operator.cli.paint import BAD, BOLD, DIM, PLAIN, UNSURE, Canvas, Line, Span, wrapped
from omni_operator.cli.picture_text import Box, bar_lines, key_span
from omni_operator.cli.plan import alike, span_of
from omni_operator.planning.layout import Layout
from omni_operator.planning.pictures import SlotPicture, owners_of, pictures

MOST_CARDS_DRAWN = 8


def card_lines(model: LiveModel, replicas: Sequence[int], canvas: Canvas) -> list[Line]:
    """The cards of some replicas; those that look the same within one replica, as one."""
    layout, judgement = model.layout, model.drawn
    if layout is None or judgement is None:
        return []
    drawn = pictures(layout, judgement.split)
    groups = [(replica, slots, picture) for replica in replicas for slots, picture in alike(drawn)]
    lines: list[Line] = []
    for replica, slots, picture in groups[:MOST_CARDS_DRAWN]:
        stages = {row.name: row for row in model.stages if row.replica == replica}
        cards = [card for card in model.cards if card.replica == replica and card.slot in slots]
        title = f"GPU {span_of(slots)}" + (f" of replica {replica}" if len(model.replicas) > 1 else "")
        lines += [[Span("")], *_title_lines(title, picture, layout.card, cards, canvas)]
        lines += bar_lines(picture, canvas, owners_of(drawn), _used(picture, layout, stages))
        lines += _legend(picture, layout.card, stages, owners_of(drawn), canvas)
    if len(groups) > MOST_CARDS_DRAWN:
        lines.append([Span(f"  and {len(groups) - MOST_CARDS_DRAWN} more GPUs: --replica shows those of one", DIM)])
    return lines


def _title_lines(
    title: str, picture: SlotPicture, card: Card | None, cards: Sequence[LiveCard], canvas: Canvas
) -> list[Line]:
    over = picture.total > picture.limit
    sums = f"{format_percent(picture.total, unlike=picture.limit)} of {format_percent(picture.limit)}"
    head = [
        Span(title, BOLD),
        Span(f"  {card.name} {format_bytes(card.memory)}" if card else "  card not known", DIM),
        Span("   "),
        Span(sums, BAD if over else BOLD),
        Span(" asked for" if over else " given away"),
    ]
    return [head, *wrapped([Span("  "), Span(_behind(cards), DIM)], canvas.columns, 2)]


def _behind(cards: Sequence[LiveCard]) -> str:
    """The real GPUs of a picture, once they are allocated."""
    found = [card for card in cards if card.uuid or card.node]
    if not found:
        return "no GPU allocated yet"
    products = ", ".join(dict.fromkeys(f"{card.product} {card.capacity}".strip() for card in found if card.product))
    nodes = ", ".join(dict.fromkeys(card.node for card in found if card.node))
    uuid = found[0].uuid if len(found) == 1 else f"{len(found)} GPUs"
    return ", ".join(filter(None, (products, uuid, f"on {nodes}" if nodes else "")))


def _used(picture: SlotPicture, layout: Layout, stages: Mapping[str, LiveStage]) -> dict[str, Fraction]:
    """By stage, what its process holds as a part of what its stages on the card may; nothing where none is known."""
    shares: dict[str, Fraction] = {}
    for band in picture.bands:
        shares[band.owner] = shares.get(band.owner, Fraction(0)) + band.share
    result = {}
    for name in picture.owners:
        row = stages.get(name)
        if layout.card is not None and row is not None and row.measured is not None:
            together = sum((shares[other] for other in _companions(row, stages) if other in shares), Fraction(0))
            result[name] = Fraction(row.measured, layout.card.memory) / together if together else Fraction(0)
    return result


def _companions(row: LiveStage, stages: Mapping[str, LiveStage]) -> list[str]:
    """The stages of its process, itself too: they are measured together."""
    return [name for name, other in stages.items() if other.pod == row.pod]


def _legend(
    picture: SlotPicture,
    card: Card | None,
    stages: Mapping[str, LiveStage],
    owners: Sequence[str],
    canvas: Canvas,
) -> list[Line]:
    width = max(len(name) for name in (*picture.owners, "too many"))
    told = any(row.kept_by for row in stages.values())
    head = f"      {'STAGE':{width}}  {'SHARE':>7}  {'DECLARED':>8}  {'MEASURED':>8}"
    lines: list[Line] = [[Span(f"{head}  {'KEPT BY  ' if told else ''}STATE", DIM)]]
    for name in picture.owners:
        share = sum((band.share for band in picture.bands if band.owner == name), Fraction(0))
        declared = int(share * card.memory) if card else None
        row = stages.get(name)
        over = bool(row and row.measured and declared and row.measured > declared and len(_companions(row, stages)) < 2)
        lines.append(
            [
                Span("    "),
                key_span(owners.index(name), canvas),
                Span(f" {name:{width}}  {format_percent(share):>7}  {_bytes(declared):>8}"),
                Span(f"  {_bytes(row.measured) if row else '':>8}", BAD if over else PLAIN),
                *(_kept_spans(row) if told else ()),
                Span(f"  {_state(row, stages)}" if row else "", DIM),
            ]
        )
    lines += [[Span("    "), Span("? ", BAD), Span(f"{name:{width}}  no gpuMemory", DIM)] for name in picture.unknown]
    if picture.total > picture.limit:
        over_by = picture.total - picture.limit
        amount = _bytes(int(over_by * card.memory)) if card else ""
        words = f" {'too many':{width}}  {format_percent(over_by):>7}  {amount:>8}"
        return [*lines, [Span("    "), Span("!", BAD), Span(words, BAD)]]
    free = f" {'free':{width}}  {format_percent(picture.free):>7}"
    amount = _bytes(int(picture.free * card.memory)) if card else ""
    return [*lines, [Span("    "), Span(Box(canvas).free, DIM), Span(f"{free}  {amount:>8}", DIM)]]


def _kept_spans(row: LiveStage | None) -> list[Span]:
    """Who keeps it within its share; that nobody does stands out."""
    by = row.kept_by if row else ""
    return [Span(f"  {by:7}", UNSURE if by == Enforcer.NOTHING else DIM)]


def _state(row: LiveStage, stages: Mapping[str, LiveStage]) -> str:
    others = [name for name in _companions(row, stages) if name != row.name]
    together = f", measured with {', '.join(others)}" if others and row.measured is not None else ""
    return f"{row.state}{f', {row.restarts} restarts' if row.restarts else ''}{together}"


def _bytes(value: int | None) -> str:
    return "" if value is None else format_bytes(value)
