"""A running OmniModel for the terminal: verdict, cards, stages by state, what is waited for, conditions; and a table
of many. Pure: the time comes in as an argument."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from omni_operator.api.enums import SharingStrategy
from omni_operator.api.quantities import format_bytes
from omni_operator.api.reasons import ON_THE_WAY, ConditionType, Reason
from omni_operator.cli.live_cards import card_lines
from omni_operator.cli.live_model import LiveModel, LiveStage
from omni_operator.cli.live_waiting import Waiting, span_of_time, started_for, startup_limit, waiting
from omni_operator.cli.paint import BAD, BOLD, DIM, GOOD, UNSURE, Canvas, Line, Span, Style, table, wrapped
from omni_operator.cli.plan import span_of

STATES = (
    "Failed",
    "Restarting",
    "Missing",
    "Terminating",
    "Starting",
    "Pending",
    "Gated",
    "Ready",
)
"""The worst first; states that another version may know come before all."""
MOST_WHY = 100
"""Characters of a row's reason in the table of all."""
NOT_SEEN = "no operator has looked at it yet"


def status_lines(model: LiveModel, now: datetime, canvas: Canvas, replica: int | None = None) -> list[Line]:
    """The whole picture of one OmniModel; with `replica`, the cards and stages of that one only."""
    shown = [index for index in model.replicas if replica in (None, index)]
    lines = wrapped(_title(model), canvas.columns, 2)
    lines += wrapped(verdict(model, canvas), canvas.columns, 2)
    if model.current:
        lines += card_lines(model, shown or [0], canvas)  # What is refused has no replicas, and a picture says why.
    lines += stage_lines(model, shown, now, canvas)
    lines += waiting_lines(model, shown, canvas)
    lines += restart_lines(model, shown, now, canvas)
    lines += condition_lines(model, now, canvas)
    for note in (*model.notes, *_refused_note(model)):
        lines += [[Span("")], *wrapped([Span("  note: ", DIM), Span(note, DIM)], canvas.columns, 4)]
    return lines


def _refused_note(model: LiveModel) -> list[str]:
    """A refused edit leaves what ran before it running."""
    accepted = model.condition(ConditionType.ACCEPTED)
    if not model.current or accepted is None or accepted.good or not model.stages:
        return []
    if model.running is None:
        return [f"The cards show generation {model.generation}, which is refused; the stages are of the one before it."]
    refused = f"Shown is what runs, revision {model.revision}. Generation {model.generation} is refused"
    undo = f"`kubectl omni rollout undo {model.name}` takes it back"
    return [f"{refused}: `kubectl omni explain {model.name}` says what would fit, {undo}."]


def verdict(model: LiveModel, canvas: Canvas) -> Line:
    """Ready or not, and the one sentence that says why."""
    ready = model.condition(ConditionType.READY)
    if model.ready and ready is not None:
        return [Span(f"{mark('✓', canvas)}Ready", GOOD), Span(f"  {ready.message}  {model.endpoint}".rstrip())]
    word, message = headline(model)
    style = UNSURE if word in ON_THE_WAY or ready is None or not model.current else BAD
    return [Span(f"{mark('✗' if style is BAD else '…', canvas)}Not ready: {word}", style), Span(f"  {message}")]


def headline(model: LiveModel) -> tuple[str, str]:
    """Reason and message of not being ready."""
    ready = model.condition(ConditionType.READY)
    if model.deleting:
        return Reason.TERMINATING, "it is being deleted"
    if ready is None:
        return "NotSeen", f"{NOT_SEEN}: does omni-operator run, and watch namespace {model.namespace}?"
    if not model.current:
        seen = model.observed_generation
        return "NotSeen", f"the operator has seen generation {seen} and not {model.generation} yet: {ready.message}"
    return ready.reason, ready.message


def stage_lines(model: LiveModel, replicas: Sequence[int], now: datetime, canvas: Canvas) -> list[Line]:
    """Stages by state, the worst first; those that say the same share a line."""
    rows = [row for row in (*model.stages, *model.fronts) if row.replica in replicas]
    if not rows:
        return []
    lines: list[Line] = [[Span("")], [Span("Stages", BOLD)]]
    known = {row.state for row in rows}
    for state in (*sorted(known - set(STATES)), *(state for state in STATES if state in known)):
        word = Span(f"  {mark(_sign(state), canvas)}{state:11} ", state_style(state))
        alike: dict[str, list[str]] = {}
        for row in rows:
            if row.state == state:
                alike.setdefault(_told(row, model, now), []).append(label(model, row))
        for told, labels in alike.items():
            said = [Span(f"  {told}", DIM)] if told else []
            lines += wrapped([word, Span(", ".join(labels)), *said], canvas.columns, 16)
    return lines


def waiting_lines(model: LiveModel, replicas: Sequence[int], canvas: Canvas) -> list[Line]:
    """The starting order of every GPU that is not through with it."""
    found = [queue for queue in waiting(model) if queue.replica in replicas and model.current]
    if not found:
        return []
    lines: list[Line] = [[Span("")], [Span("Starting order", BOLD)]]
    for queue in found:
        of = f" of replica {queue.replica}" if len(model.replicas) > 1 else ""
        words: Line = [Span(f"  GPU {span_of(queue.slots)}{of}: ")]
        words += _queue_spans(queue, canvas)
        lines += wrapped(words, canvas.columns, 4)
    return lines


def restart_lines(model: LiveModel, replicas: Sequence[int], now: datetime, canvas: Canvas) -> list[Line]:
    """Replicas whose stages were restarted together, and why."""
    rows = [row for row in model.restarts if row.replica in replicas]
    lines: list[Line] = [[Span("")], [Span("Restarted together", BOLD)]] if rows else []
    for row in rows:
        of = f"replica {row.replica}: " if len(model.replicas) > 1 else ""
        times = f"{row.count} time{'s' * (row.count != 1)}, last {age(row.last, now)} ago"
        lines += wrapped([Span(f"  {of}{times}"), Span(f"  {row.reason}", DIM)], canvas.columns, 4)
    return lines


def condition_lines(model: LiveModel, now: datetime, canvas: Canvas) -> list[Line]:
    """All conditions; a message only where it is not good, and not said above."""
    if not model.conditions:
        return []
    _, said = headline(model)
    rows = [("CONDITION", "STATUS", "FOR", "REASON")]
    for condition in model.conditions:
        message = "" if condition.good or condition.message == said else f": {condition.message}"
        rows.append((condition.type, condition.status, age(condition.since, now), f"{condition.reason}{message}"))
    return [[Span("")], *table(rows, canvas)]


def table_lines(models: Sequence[LiveModel], now: datetime, canvas: Canvas, with_namespace: bool) -> list[Line]:
    """A row for each OmniModel."""
    head = (*(("NAMESPACE",) if with_namespace else ()), "NAME", "READY", "STAGES", "GPUS", "AGE", "WHY")
    rows = [head]
    for model in models:
        reason, message = headline(model)
        why = reason if model.ready else _cut(f"{reason}: {message}")
        name = (*((model.namespace,) if with_namespace else ()), model.name)
        state = "True" if model.ready else "False"
        rows.append((*name, state, model.stages_ready or "-", model.gpu_summary or "-", age(model.created, now), why))
    return table(rows, canvas)


def label(model: LiveModel, row: LiveStage) -> str:
    """A stage's name, with its replica where there are several."""
    return f"{row.name}/{row.replica}" if len(model.replicas) > 1 else row.name


def age(since: datetime | None, now: datetime) -> str:
    """How long ago, `-` where that is not known."""
    return "-" if since is None else span_of_time(max(0, int((now - since).total_seconds())))


def mark(sign: str, canvas: Canvas) -> str:
    """A sign in front of a word, where the terminal has it."""
    return f"{sign} " if canvas.unicode else ""


def state_style(state: str) -> Style:
    """Green, amber or red."""
    if state in ("Failed", "Restarting", "Missing"):
        return BAD
    return GOOD if state == "Ready" else UNSURE


def _cut(text: str) -> str:
    """For a row of a table; `status NAME` has all of it."""
    return text if len(text) <= MOST_WHY else f"{text[: MOST_WHY - 1].rstrip()}…"


def _title(model: LiveModel) -> Line:
    revision = f"revision {model.revision}" if model.revision is not None else ""
    sharing = model.sharing and f"sharing {model.sharing}"
    parts = [model.pipeline, sharing, f"generation {model.generation}", revision]
    return [Span(model.name, BOLD), Span(f"  {', '.join(part for part in parts if part)}", DIM)]


def _sign(state: str) -> str:
    return {"Ready": "✓", "Failed": "✗", "Restarting": "✗", "Missing": "✗"}.get(state, "…")


def _told(row: LiveStage, model: LiveModel, now: datetime) -> str:
    """What there is to say of a stage besides its state."""
    parts = [row.why] if row.why else []
    if row.state == "Starting" and (seconds := started_for(row, now)) is not None:
        parts.append(f"for {span_of_time(seconds)}{_limit(row, model)}")
    if row.restarts:
        parts.append(f"{row.restarts} restart{'s' * (row.restarts != 1)}")
    if row.host_memory is not None:
        parts.append(f"{format_bytes(row.host_memory)} of host memory")
    if _off_mps(row, model):
        parts.append("not attached to MPS, so its share is not enforced")
    return "; ".join(parts)


def _off_mps(row: LiveStage, model: LiveModel) -> bool:
    """Whether it computes on a GPU shared by MPS, and is no client of MPS, by its own word."""
    layout = model.layout
    if layout is None or row.page is None or row.page.mps_attached or not model.sharing.startswith(SharingStrategy.MPS):
        return False
    return bool(set(row.slots) & set(layout.shared_slots()))


def _limit(row: LiveStage, model: LiveModel) -> str:
    seconds = startup_limit(model, row.name)
    return f" of {span_of_time(seconds)}" if seconds else ""


def _queue_spans(queue: Waiting, canvas: Canvas) -> Line:
    arrow = " → " if canvas.unicode else " > "
    spans: Line = []
    for i, row in enumerate(queue.queue):
        style = GOOD if row.ready else BOLD if row is queue.now else DIM
        done = f" {'✓' if canvas.unicode else '(ready)'}" if row.ready else ""
        done = f" ({row.state})" if row is queue.now else done
        spans += [Span(arrow if i else "", DIM), Span(f"{row.name}{done}", style)]
    return spans
