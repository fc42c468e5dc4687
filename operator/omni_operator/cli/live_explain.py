"""The explanation of an OmniModel's state for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from omni_operator.api.reasons import ConditionType
from omni_operator.cli import advice
from omni_operator.cli.advice import Advice
from omni_operator.cli.judge import Judgement
from omni_operator.cli.live_model import LiveModel
from omni_operator.cli.live_text import headline, mark, restart_lines, stage_lines, state_style, verdict, waiting_lines
from omni_operator.cli.paint import BOLD, DIM, GOOD, UNSURE, Canvas, Line, Span, wrapped
from omni_operator.cli.plan import joined
from omni_operator.cli.report import setting
from omni_operator.planning.layout import Severity, refused


def explanation(model: LiveModel, now: datetime, canvas: Canvas, flags: str = "") -> list[Line]:
    """Conditions → stages → what to change → what to look at next. `flags` choose the cluster in every command."""
    found = list(_advice(model))
    lines = wrapped(
        [Span(f"{model.name}  ", BOLD), *verdict(model, canvas)[: None if _told(model) else 1]], canvas.columns, 2
    )
    lines += _condition_lines(model, canvas)
    lines += stage_lines(model, model.replicas, now, canvas)
    lines += waiting_lines(model, model.replicas, canvas)
    lines += restart_lines(model, model.replicas, now, canvas)
    lines += _change_lines(model, found, canvas)
    return [*lines, *_command_lines(model, found, flags, canvas)]


def what_to_change(model: LiveModel, canvas: Canvas, flags: str = "") -> list[Line]:
    """The end of it: what to change, and what to look at next."""
    found = list(_advice(model))
    return [*_change_lines(model, found, canvas)[1:], *_command_lines(model, found, flags, canvas)]


def _told(model: LiveModel) -> bool:
    """Whether the verdict's sentence is not one of the conditions', which follow."""
    return model.ready or not model.current or model.deleting


def _condition_lines(model: LiveModel, canvas: Canvas) -> list[Line]:
    """In the order in which they become true, each with its whole message."""
    lines: list[Line] = [[Span("")], [Span("Conditions", BOLD)]] if model.conditions else []
    said: list[str] = []
    for condition in model.conditions:
        style = GOOD if condition.good else UNSURE
        sign = mark("✓" if condition.good else "✗", canvas)
        before = max((text for text in said if condition.message.startswith(text)), key=len, default=None)
        message = condition.message if before is None else f"as above.{condition.message[len(before) :]}"
        said += [condition.message] if condition.message else []
        words = [Span(f"  {sign}{condition.type}", style), Span(f"  {condition.reason}: "), Span(message, DIM)]
        lines += wrapped(words, canvas.columns, 4)
    return lines


def _change_lines(model: LiveModel, found: Sequence[Advice], canvas: Canvas) -> list[Line]:
    lines: list[Line] = [[Span("")], [Span("What to change", BOLD)]]
    judgement = model.judgement
    accepted = model.condition(ConditionType.ACCEPTED)
    if _refused(model):
        assert judgement is not None
        return [*lines, *_refusal_lines(model, judgement, canvas)]
    if judgement is not None and accepted is not None and accepted.good is refused(judgement.problems):
        text = "The operator and this kubectl-omni judge the spec differently: they are of different versions."
        lines += wrapped([Span(f"  {text}")], canvas.columns, 2)
    for i, one in enumerate(found, 1):
        lines += wrapped([Span(f"  {i}. {one.change}")], canvas.columns, 5)
    if len(lines) == 2:
        text = "Nothing." if model.ready else "Nothing yet: what is under way takes its time."
        lines += [[Span(f"  {text}")]]
    return [*lines, *_warning_lines(model, canvas)]


def _refused(model: LiveModel) -> bool:
    """Whether the spec is refused: by the operator, and where it has not looked yet, by the rules alone."""
    accepted = model.condition(ConditionType.ACCEPTED)
    by_operator = model.current and accepted is not None and accepted.good
    return model.judgement is not None and refused(model.judgement.problems) and not by_operator


def _refusal_lines(model: LiveModel, judgement: Judgement, canvas: Canvas) -> list[Line]:
    """What the rules say of the stored spec, and the changes that would make it pass, checked by the same rules."""
    said = _said(model)
    lines: list[Line] = []
    for problem in joined([problem for problem in judgement.problems if str(problem) not in said]):
        style = state_style("Failed") if problem.severity is Severity.ERROR else UNSURE
        lines += wrapped(
            [Span(f"  {problem.reason}", style), Span(f" in {problem.field}: {problem}")], canvas.columns, 4
        )
    for i, remedy in enumerate(judgement.remedies, 1):
        lines += wrapped([Span(f"  {i}. {remedy.title}")], canvas.columns, 5)
        fields = ", ".join(f"spec.{change.path}: {change.new}" for change in remedy.changes[:4])
        lines += wrapped([Span("     "), Span(fields, DIM)], canvas.columns, 5)
        if remedy.note:
            lines += wrapped([Span("     "), Span(remedy.note, DIM)], canvas.columns, 5)
    return lines


def _said(model: LiveModel) -> str:
    """What the condition Accepted says of the spec as it is now."""
    accepted = model.condition(ConditionType.ACCEPTED)
    return accepted.message if accepted is not None and model.current else ""


def _warning_lines(model: LiveModel, canvas: Canvas) -> list[Line]:
    lines: list[Line] = []
    problems = model.judgement.problems if model.judgement else ()
    for problem in joined([problem for problem in problems if str(problem) not in _said(model)]):
        lines += wrapped([Span(f"  {problem.reason}: ", UNSURE), Span(str(problem))], canvas.columns, 4)
    return lines


def _advice(model: LiveModel) -> Iterator[Advice]:
    """Of the whole, then of each stage in trouble; the same words once."""
    reason, _ = headline(model)
    rows = [row for row in model.stages if not row.ready] if model.current else []
    given = [None if model.ready else advice.of_model(model, str(reason)), *(advice.of_stage(model, r) for r in rows)]
    told: set[str] = set()
    for one in given:
        if one is not None and one.change not in told:
            told.add(one.change)
            yield one


def _command_lines(model: LiveModel, found: Sequence[Advice], flags: str, canvas: Canvas) -> list[Line]:
    commands = list(dict.fromkeys(command for one in found for command in one.commands))
    judgement = model.judgement
    if judgement is not None and _refused(model):
        edits = [f" --set '{setting(change)}'" for remedy in judgement.remedies[:1] for change in remedy.changes]
        commands.append(f"kubectl get omnimodel {model.name} -o yaml{flags} | kubectl omni plan -{''.join(edits)}")
        commands.append(f"kubectl edit omnimodel {model.name}")
    elif not model.ready:
        starting = next((row for row in model.stages if row.state == "Starting"), None)
        commands += [f"kubectl omni logs {model.name} {starting.name} -f"] if starting else []
        commands.append(f"kubectl omni status {model.name} -w")
    else:
        commands.append(f"kubectl port-forward service/{model.name} 8000")
    shown = [command if "|" in command else f"{command}{flags}" for command in commands[:8]]
    return [[Span("")], [Span("Next", BOLD)], *([Span(f"  {command}")] for command in shown)]
