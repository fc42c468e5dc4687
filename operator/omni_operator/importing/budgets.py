"""Questions about budgets: what shares a GPU must say how much it takes, and some settings only seem to say it."""

from __future__ import annotations

from collections.abc import Mapping

from omni_operator.importing.notes import Note, NoteKind, NoteReason
from omni_operator.planning.layout import Layout, Stage


def shared(layout: Layout, stage: Stage) -> list[int]:
    """Slots of a stage that it shares with other stages, or with copies of itself."""
    return [slot for slot in stage.slots if stage.copies > 1 or len(layout.on_slot(slot)) > 1]


def ask(layout: Layout, static_fractions: Mapping[str, str]) -> list[Note]:
    """One question per stage without a budget on a shared slot."""
    notes = []
    for name, stages in _by_logical_name(layout).items():
        unclear = [stage for stage in stages if stage.budget is None and shared(layout, stage)]
        if not unclear:
            continue
        slot = shared(layout, unclear[0])[0]
        others = [stage.name for stage in layout.on_slot(slot) if stage is not unclear[0]]
        company = f"with {', '.join(others)}" if others else "with copies of itself"
        notes.append(
            _static(name, static_fractions[name], slot)
            if name in static_fractions
            else Note(
                NoteKind.ASK,
                NoteReason.BUDGET_MISSING,
                f"How much memory does {name} take? It shares GPU {slot} {company} and declares nothing.",
                f"spec.stages[name={name}].gpuMemory",
            )
        )
    return notes


def _static(name: str, fraction: str, slot: int) -> Note:
    return Note(
        NoteKind.ASK,
        NoteReason.BUDGET_UNKNOWN,
        f"How much memory does {name} take on GPU {slot}? mem_fraction_static {fraction} is a part of what is "
        "free when the "
        "engine starts, not a share of the card, so it cannot be summed.",
        f"spec.stages[name={name}].gpuMemory",
    )


def uncapped_copies(layout: Layout, capped: Mapping[str, bool]) -> list[Note]:
    """Copies of an engine on one GPU take different amounts of it, by the order of their start, unless capped."""
    return [
        Note(
            NoteKind.WARNING,
            NoteReason.CAP_MISSING,
            f"{stage.copies} copies of {stage.name} start on one GPU without a common cap of their KV cache; "
            "the first takes "
            "most of it. Give max_total_tokens or kvCache.",
            f"spec.stages[name={stage.name}].kvCache",
        )
        for stage in layout.stages
        if stage.copies > 1 and stage.engine and stage.kv_cache is None and not capped.get(logical_name(stage), False)
    ]


def logical_name(stage: Stage) -> str:
    """The stage's name without the number of its copy."""
    return stage.name.partition("@r")[0]


def _by_logical_name(layout: Layout) -> dict[str, list[Stage]]:
    result: dict[str, list[Stage]] = {}
    for stage in layout.stages:
        result.setdefault(logical_name(stage), []).append(stage)
    return result
