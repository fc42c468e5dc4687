"""What a model needs, stage by stage, where it goes, and which cards can.

For OmniModels of a file, for a known model by its hub id, or for any model's folder: its config.json, its index and the
headers of its safetensors files are read, no tensor. Stages with a gpuMemory are taken as declared; the others as the
model's size says.

exit code: 0 it fits, 1 it does not or its size is not known, 2 bad input
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from omni_operator.api.quantities import format_bytes, format_percent
from omni_operator.cli import targets as targeting
from omni_operator.cli.paint import BAD, BOLD, DIM, GOOD, UNSURE, Canvas, Line, Span, canvas_for, table, wrapped
from omni_operator.cli.targets import Target
from omni_operator.planning.estimate import (
    SlotAccount,
    StageNeed,
    Workload,
    accounts,
    cards_that_fit,
    check_estimate,
    room_for,
    smallest_budget,
    stage_needs,
)
from omni_operator.planning.layout import Severity, refused


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    targeting.arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the estimates. Raises BadInput."""
    workload = Workload(arguments.context, arguments.requests)
    found = targeting.targets(arguments, tuple(arguments.card))
    canvas = canvas_for(sys.stdout)
    fits = True
    for target in found:
        sys.stdout.write(canvas.draw(lines(target, workload, canvas)))
        fits = fits and _fits(target, workload)
    return 0 if fits else 1


def _fits(target: Target, workload: Workload) -> bool:
    if target.size is None:
        return False
    if target.layout.card is None:
        return any(fit.fits for fit in cards_that_fit(target.layout, target.size, workload))
    return not refused(check_estimate(target.layout, target.size, workload))


def lines(target: Target, workload: Workload, canvas: Canvas) -> list[Line]:
    """One estimate for the terminal."""
    layout = target.layout
    title: Line = [Span(target.name or target.model, BOLD), Span(f"  {layout.pipeline}/{layout.variant}", DIM)]
    if target.size is None:
        unknown = f"The size of {target.model or 'this model'} is not known to the catalogue."
        return [title, *wrapped([Span(unknown, UNSURE)], canvas.columns)]
    tokens = workload.tokens(target.size)
    served = f"  Served: {workload.requests} × {tokens // workload.requests:,} tokens at once." if tokens else ""
    result: list[Line] = [title, [Span(served, DIM)], [Span("")]]
    result += _needs(target, stage_needs(layout, target.size, workload), canvas)
    for account in accounts(layout, target.size, workload):
        result += [[Span("")], *_account(account, canvas)]
    result += _rooms(target, workload, canvas)
    for problem in check_estimate(layout, target.size, workload):
        style = BAD if problem.severity is Severity.ERROR else UNSURE
        words: Line = [Span(f"{problem.reason}: ", style), Span(f"{problem.message} {problem.remedy}")]
        result += [[Span("")], *wrapped(words, canvas.columns, 2)]
    return [*result, [Span("")], *_cards(target, workload, canvas)]


def _needs(target: Target, needs: object, canvas: Canvas) -> list[Line]:
    assert isinstance(needs, dict)
    rows: list[Sequence[str]] = [("STAGE", "NEEDS", "OF THE CARD", "WHERE IT GOES")]
    for need in needs.values():
        assert isinstance(need, StageNeed)
        card = target.layout.card
        share = format_percent(smallest_budget(need, card)) if card else ""
        parts = ", ".join(f"{part.kind} {format_bytes(part.size)}" for part in need.parts if part.size)
        rows.append((need.stage, format_bytes(need.capped), share, parts))
    return table(rows, canvas)


def _account(account: SlotAccount, canvas: Canvas) -> list[Line]:
    verdict = f"{format_bytes(account.missing)} too many" if account.missing else "fits"
    words: Line = [
        Span(f"GPU {account.slot}", BOLD),
        Span(f"  {format_bytes(account.needed, account.card)} of {format_bytes(account.card)}, "),
        Span(verdict, BAD if account.missing else GOOD),
        Span(f"  ({format_bytes(account.held_back)} of it held back for CUDA graphs and workspaces)", DIM),
    ]
    return wrapped(words, canvas.columns, 2)


def _rooms(target: Target, workload: Workload, canvas: Canvas) -> list[Line]:
    assert target.size is not None
    result: list[Line] = []
    for stage in target.layout.stages:
        room = room_for(target.layout, stage.name, target.size, workload) if stage.engine and stage.slots else None
        if room is not None:
            size = format_bytes(max(0, room.size))
            text = f"  {stage.name}: room for {room.tokens:,} tokens of KV cache ({size})"
            if context := workload.context or target.size.context:
                number = room.requests(context)
                text += f", {number:,} request{'s' * (number != 1)} of {context:,} tokens at once"
            result += wrapped([Span(text)], canvas.columns, 4)
    return [[Span("")], *result] if result else []


def _cards(target: Target, workload: Workload, canvas: Canvas) -> list[Line]:
    assert target.size is not None
    found = cards_that_fit(target.layout, target.size, workload)
    good = [fit.card.name for fit in found if fit.fits]
    text = f"Cards that it fits as it stands: {', '.join(good)}." if good else "No card of the catalogue holds it so."
    return wrapped([Span(text)], canvas.columns, 2)
