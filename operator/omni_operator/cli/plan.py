"""Will it fit, why not, and what would.

Shows the verdict that the operator would give, a picture of each card, the reasons, and what would help, each checked
by the same rules. Files are OmniModels (several documents are fine), or pipeline files of sglang-omni or vLLM-Omni.

exit code: 0 all accepted, 1 one or more not accepted, 2 bad input
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from omni_operator.api.quantities import format_bytes, format_percent
from omni_operator.cli.judge import Judgement, Options
from omni_operator.cli.paint import BAD, BOLD, DIM, GOOD, PLAIN, TIE, UNSURE, Canvas, Line, Span, canvas_for, wrapped
from omni_operator.cli.picture_text import slot_lines
from omni_operator.cli.report import report, setting
from omni_operator.cli.sources import judgements
from omni_operator.planning.budget import Verdict
from omni_operator.planning.layout import Layout, Problem, Severity
from omni_operator.planning.pictures import SlotPicture, owners_of, pictures

FORMS = ("text", "wide", "json", "yaml", "svg")
MOST_CARDS_DRAWN = 8
REFUSED = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="file, or - for standard input")
    parser.add_argument("-o", "--output", choices=FORMS, default="text", help="form of the output (text)")
    parser.add_argument(
        "--card",
        action="append",
        default=[],
        help="card or memory, such as h200 or 81559Mi; several: the smallest counts",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change the spec first, such as 'stages[thinker].gpuMemory=80%%'",
    )
    parser.add_argument(
        "--held", action="append", default=[], metavar="SLOT=AMOUNT", help="what others hold of a card, such as 0=26Gi"
    )
    parser.add_argument("--strict", action="store_true", help="refuse whatever has a warning")


def run(arguments: argparse.Namespace) -> int:
    """Prints the plans of all OmniModels in the files. Raises BadInput."""
    options = Options(tuple(arguments.card), tuple(arguments.set), tuple(arguments.held), arguments.strict)
    judged = judgements(arguments.files, options)
    sys.stdout.write(output(judged, arguments.output, canvas_for(sys.stdout)))
    return 0 if all(judgement.verdict is Verdict.ACCEPTED for judgement in judged) else REFUSED


def output(judged: Sequence[Judgement], form: str, canvas: Canvas) -> str:
    """The plans in one of the forms."""
    if form == "json":
        return json.dumps(report(judged), indent=2, ensure_ascii=False) + "\n"
    if form == "yaml":
        import yaml

        text: str = yaml.safe_dump(report(judged), sort_keys=False, allow_unicode=True, width=120)
        return text
    if form == "svg":
        from omni_operator.cli.picture_svg import svg

        return svg(judged)
    lines: list[Line] = []
    for i, judgement in enumerate(judged):
        lines += [[Span("")]] if i else []
        lines += judgement_lines(judgement, canvas, form == "wide")
    return canvas.draw(lines)


def judgement_lines(judgement: Judgement, canvas: Canvas, wide: bool) -> list[Line]:
    """One plan for the terminal."""
    lines = wrapped(_title(judgement), canvas.columns, 2)
    layout = judgement.layout
    if layout is not None:
        notes = {stage.name: _note(judgement, layout, stage.name, wide) for stage in layout.stages}
        drawn = pictures(layout, judgement.split)
        shown = alike(drawn)
        for slots, picture in shown[:MOST_CARDS_DRAWN]:
            lines += [[Span("")], *slot_lines(picture, span_of(slots), canvas, layout.card, notes, owners_of(drawn))]
        if len(shown) > MOST_CARDS_DRAWN:
            lines.append([Span(f"  and {len(shown) - MOST_CARDS_DRAWN} more GPUs", DIM)])
        elsewhere = [stage.name for stage in layout.stages if not stage.slots]
        if elsewhere:
            lines += [[Span("")], *wrapped([Span("On the CPU: ", DIM), Span(", ".join(elsewhere))], canvas.columns, 2)]
    lines += [[Span("")], *_verdict_lines(judgement, canvas)]
    for problem in joined(judgement.problems):
        lines += _problem_lines(problem, judgement, canvas)
    return [*lines, *_remedy_lines(judgement, canvas), *_note_lines(judgement, canvas)]


def alike(shown: Sequence[SlotPicture]) -> list[tuple[list[int], SlotPicture]]:
    """Cards that look the same, such as those of a tensor-parallel stage, together."""
    groups: dict[object, tuple[list[int], SlotPicture]] = {}
    for picture in shown:
        key = (picture.bands, picture.total, picture.unknown)
        groups.setdefault(key, ([], picture))[0].append(picture.slot)
    return list(groups.values())


def joined(problems: Sequence[Problem]) -> list[Problem]:
    """Problems that say the same of several GPUs as one."""
    groups: dict[object, list[Problem]] = {}
    for problem in problems:
        bare = f"{problem.message} {problem.remedy}".replace(f"GPU {problem.slot}", "GPU")
        groups.setdefault((problem.reason, problem.severity, problem.field, bare), []).append(problem)
    result = []
    for group in groups.values():
        first = group[0]
        slots = span_of([problem.slot for problem in group if problem.slot is not None])
        one = f"GPU {first.slot}"
        several = len(group) > 1
        message = first.message.replace(one, f"GPU {slots}") if several else first.message
        remedy = first.remedy.replace(one, f"GPU {slots}") if several else first.remedy
        result.append(replace(first, message=message, remedy=remedy))
    return result


def span_of(slots: Sequence[int]) -> str:
    """`0`, `0 and 2`, `0 to 7`."""
    if len(slots) > 2 and list(slots) == list(range(slots[0], slots[-1] + 1)):
        return f"{slots[0]} to {slots[-1]}"
    texts = [str(slot) for slot in slots]
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def _title(judgement: Judgement) -> Line:
    layout = judgement.layout
    words: Line = [Span(judgement.name or judgement.source, BOLD)]
    if layout is not None:
        gpus = len(layout.slots)
        words.append(
            Span(f"  {layout.pipeline}/{layout.variant}, {gpus} GPU{'s' * (gpus != 1)}, {_sharing(layout)}", DIM)
        )
    return words


def _sharing(layout: Layout) -> str:
    return "not shared" if layout.unshared else f"shared by {layout.strategy} over {layout.backend}"


def _note(judgement: Judgement, layout: Layout, name: str, wide: bool) -> str:
    """Weights and KV cache where they are known; with `wide`, also process, slots and copies."""
    stage = next(stage for stage in layout.stages if stage.name == name)
    parts = []
    if name in judgement.split:
        weights, kv = judgement.split[name]
        parts.append(f"weights {format_bytes(weights)}" + (f", KV {format_bytes(kv)}" if kv else ""))
    elif stage.kv_cache is not None:
        parts.append(f"KV {format_bytes(stage.kv_cache)}")
    if stage.copies > 1:
        parts.append(f"{stage.copies} copies")
    if len(stage.slots) > 1 and stage.copies_per_slot == stage.copies:
        parts.append(f"on GPU {span_of(stage.slots)}")
    if wide:
        parts.append(f"process {stage.process}")
        parts += [f"{stage.compute_percentage}% of the threads"] if stage.compute_percentage is not None else []
    return "; ".join(parts)


def _verdict_lines(judgement: Judgement, canvas: Canvas) -> list[Line]:
    layout = judgement.layout
    sums = ""
    if layout is not None and layout.slots:
        groups = [(span_of(slots), picture.total) for slots, picture in alike(pictures(layout))]
        listed = [f"GPU {slots} {format_percent(total, unlike=layout.limit)}" for slots, total in groups[:6]]
        sums = f"  {', '.join(listed)} of {format_percent(layout.limit)}" + (" …" if len(groups) > 6 else "")
    word, style = {
        Verdict.ACCEPTED: ("✓ Accepted", GOOD),
        Verdict.UNDECIDED: ("? Not decided: something is missing", UNSURE),
        Verdict.REFUSED: ("✗ Refused", BAD),
    }[judgement.verdict]
    if not canvas.unicode:
        word = word.encode("ascii", "ignore").decode().strip()
    return wrapped([Span(word, style), Span(sums, DIM)], canvas.columns, 2)


def _problem_lines(problem: Problem, judgement: Judgement, canvas: Canvas) -> list[Line]:
    style = {Severity.ERROR: BAD, Severity.QUESTION: UNSURE, Severity.WARNING: UNSURE}[problem.severity]
    place = judgement.places.get(problem.field)
    words: Line = [Span(f"  {problem.reason}: ", style), Span(problem.message)]
    if problem.remedy:
        words.append(Span(f" {problem.remedy}", PLAIN))
    if place is not None:
        words.append(Span(f" [line{TIE}{place.line}]", DIM))
    return wrapped(words, canvas.columns, 4)


def _remedy_lines(judgement: Judgement, canvas: Canvas) -> list[Line]:
    if not judgement.remedies:
        return []
    lines: list[Line] = [[Span("")], [Span("What would fit, the mildest first:", BOLD)]]
    for i, remedy in enumerate(judgement.remedies, 1):
        lines += wrapped([Span(f"  {i}. "), Span(remedy.title)], canvas.columns, 5)
        if remedy.note:
            lines += wrapped([Span("     "), Span(remedy.note, DIM)], canvas.columns, 5)
        settings = " ".join(f"--set '{setting(change)}'" for change in remedy.changes)
        if len(remedy.changes) <= 3 and not judgement.imported:
            lines += wrapped([Span("     "), Span(settings, DIM)], canvas.columns, 5)
    return lines


def _note_lines(judgement: Judgement, canvas: Canvas) -> list[Line]:
    lines: list[Line] = [[Span("")]] if judgement.notes else []
    for note in judgement.notes:
        lines += wrapped([Span("  note: ", DIM), Span(note, DIM)], canvas.columns, 4)
    return lines
