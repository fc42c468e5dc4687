"""Judgements as data for programs: what `--output json` and `--output yaml` print. Field names are stable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_operator.api.quantities import format_percent
from omni_operator.cli.judge import Judgement
from omni_operator.planning.changes import Change, Remedy
from omni_operator.planning.layout import Layout, Problem, Stage
from omni_operator.planning.pictures import pictures


def report(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """All plans in one object. Memory is in bytes, shares are percentages as text."""
    return {"plans": [_plan(judgement) for judgement in judgements]}


def _plan(judgement: Judgement) -> dict[str, Any]:
    layout = judgement.layout
    result: dict[str, Any] = {
        "name": judgement.name,
        "source": judgement.source,
        "verdict": str(judgement.verdict),
        "problems": [_problem(problem, judgement) for problem in judgement.problems],
        "remedies": [_remedy(remedy) for remedy in judgement.remedies],
        "notes": list(judgement.notes),
    }
    if layout is not None:
        result |= {
            "pipeline": layout.pipeline,
            "variant": layout.variant,
            "card": None if layout.card is None else {"name": layout.card.name, "memory": layout.card.memory},
            "maxShare": format_percent(layout.limit),
            "sharing": {"strategy": str(layout.strategy), "backend": str(layout.backend)},
            "slots": _slots(layout),
            "stages": [_stage(layout, stage, judgement) for stage in layout.stages],
        }
    return result


def _slots(layout: Layout) -> list[dict[str, Any]]:
    memory = layout.card.memory if layout.card else None
    return [
        {
            "slot": picture.slot,
            "givenAway": format_percent(picture.total, unlike=picture.limit),
            "free": format_percent(picture.free),
            "freeBytes": None if memory is None else int(picture.free * memory),
            "stages": list(picture.owners),
            "withoutBudget": list(picture.unknown),
        }
        for picture in pictures(layout)
    ]


def _stage(layout: Layout, stage: Stage, judgement: Judgement) -> dict[str, Any]:
    memory = layout.card.memory if layout.card else None
    known = judgement.split.get(stage.name)
    return {
        "name": stage.name,
        "process": stage.process,
        "slots": list(stage.slots),
        "copies": stage.copies,
        "gpuMemory": None if stage.budget is None else str(stage.budget),
        "bytes": stage.budget.bytes_of(memory) if stage.budget is not None and memory is not None else None,
        "weightBytes": known[0] if known else None,
        "kvCacheBytes": known[1] if known else stage.kv_cache,
    }


def _problem(problem: Problem, judgement: Judgement) -> dict[str, Any]:
    place = judgement.places.get(problem.field)
    return {
        "reason": str(problem.reason),
        "severity": str(problem.severity),
        "message": problem.message,
        "remedy": problem.remedy,
        "field": problem.field,
        "line": place.line if place else None,
        "slot": problem.slot,
        "stages": list(problem.stages),
        "needed": problem.needed,
        "available": problem.available,
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "kind": remedy.kind.name,
        "title": remedy.title,
        "note": remedy.note,
        "set": [setting(change) for change in remedy.changes],
    }


def setting(change: Change) -> str:
    """A change as `--set` takes it."""
    value = change.new
    text = f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
    return f"{change.path}={text}"
