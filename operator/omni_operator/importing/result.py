"""The result of an import, and the sums per GPU that everything is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from omni_operator.api.quantities import Amount, Share
from omni_operator.importing.found import Form
from omni_operator.importing.notes import Note, NoteKind
from omni_operator.planning.layout import Layout


@dataclass(frozen=True)
class SlotSum:
    """What the stages of one slot ask for together: shares and amounts apart, since a card joins them."""

    share: Fraction = Fraction(0)
    amount: int = 0
    without_budget: tuple[str, ...] = ()
    """Stages that declare nothing, in pipeline order."""


@dataclass(frozen=True)
class Imported:
    """One file as an OmniModel."""

    form: Form
    manifest: Mapping[str, Any]
    """The OmniModel as plain data. Complete, that is valid, unless `questions` leave a required field open."""
    layout: Layout
    """What the file puts on its GPUs, all copies of stages included, which an OmniModel cannot always say."""
    notes: tuple[Note, ...] = ()
    platforms: Mapping[str, Layout] = field(default_factory=dict)
    """vLLM-Omni: a layout per platform of the file, `cuda` (which is `layout`) among them."""
    slots: Mapping[int, int] = field(default_factory=dict)
    """The file's device numbers → slots of `layout`."""

    @property
    def questions(self) -> tuple[Note, ...]:
        """What must be asked before the verdict means anything."""
        return tuple(note for note in self.notes if note.kind is NoteKind.ASK)


def slot_sums(layout: Layout) -> dict[int, SlotSum]:
    """Exact sums by slot; each rank counts on its slot, and copies multiply."""
    return {slot: _sum(layout, slot) for slot in layout.slots}


def _sum(layout: Layout, slot: int) -> SlotSum:
    share, amount = Fraction(0), 0
    without = []
    for stage in layout.on_slot(slot):
        if isinstance(stage.budget, Share):
            share += stage.budget.value * stage.copies
        elif isinstance(stage.budget, Amount):
            amount += stage.budget.value * stage.copies
        else:
            without.append(stage.name)
    return SlotSum(share, amount, tuple(without))
