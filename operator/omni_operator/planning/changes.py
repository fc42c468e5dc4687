"""Remedies as values: a change to a field, the layout after it, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import IntEnum
from fractions import Fraction
from typing import Any

from omni_operator.api.quantities import Amount, Budget, Share
from omni_operator.planning.layout import Layout, Stage

Floor = Callable[[Stage, Layout], int | None]
"""Bytes that a stage needs at least on each of its slots, without any KV cache; None where its size is not known."""
Lighter = Callable[[Stage, Layout], int | None]
"""Bytes on each slot that a stage saves with FP8 weights; None where it has no such weights."""


class Kind(IntEnum):
    """Kinds of remedies, the mildest first."""

    DECLARE = 1
    """Say what a stage may take that said nothing."""
    RAISE = 2
    """Give a stage what its weights need."""
    SHRINK = 3
    MOVE = 4
    ADD_SLOT = 5
    FP8 = 6
    BIGGER_CARD = 7


@dataclass(frozen=True)
class Change:
    """One field of the spec, of a stage or, with an empty `stage`, of the whole model."""

    stage: str
    field: str
    """`gpuMemory`, `kvCache`, `gpus` and `engineArgs.…` of a stage; `gpus.card` of the model."""
    old: object
    new: object

    def __str__(self) -> str:
        whose = f"{self.field} of {self.stage}" if self.stage else self.field
        return f"{whose} to {self.new}" if self.old is None else f"{whose} from {self.old} to {self.new}"

    @property
    def path(self) -> str:
        """Where it stands in the spec, as `--set` takes it."""
        return f"stages[name={self.stage}].{self.field}" if self.stage else self.field


@dataclass(frozen=True)
class Remedy:
    """A change that was checked: `layout` is the layout after it, and it is accepted."""

    kind: Kind
    title: str
    changes: tuple[Change, ...]
    layout: Layout
    cost: Fraction
    """How much is taken away, for ranking within a kind."""
    note: str = ""
    """What the user should know before doing it."""


def applied(spec: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """A spec, as plain YAML data, with the changes made. The given one stays as it is."""
    result: dict[str, Any] = deepcopy(dict(spec))
    for change in changes:
        value = change.new if isinstance(change.new, list) else str(change.new)
        if change.stage:
            stages = result.setdefault("stages", [])
            found = next((stage for stage in stages if stage.get("name") == change.stage), None)
            if found is None:
                stages.append(found := {"name": change.stage})
            *outer, field = change.field.split(".")
            for part in outer:
                found = found.setdefault(part, {})
            found[field] = value
        else:
            gpus = result.setdefault("gpus", {})
            gpus.pop("memory", None)
            gpus[change.field.removeprefix("gpus.")] = value
    return result


def changed_remedy(kind: Kind, layout: Layout, changed: Mapping[str, Stage], cost: Fraction, floor: Floor) -> Remedy:
    """The remedy that gives some stages other budgets or KV caches. Its layout is not checked yet."""
    changes: list[Change] = []
    for name, new in changed.items():
        old = by_name(layout, name)
        if old.budget != new.budget:
            changes.append(Change(name, "gpuMemory", old.budget, new.budget))
        if old.kv_cache != new.kv_cache:
            changes.append(Change(name, "kvCache", Amount(old.kv_cache or 0), Amount(new.kv_cache or 0)))
    title = "Lower " + ", ".join(map(str, changes))
    unknown = [name for name, stage in changed.items() if floor(stage, layout) is None]
    note = f"What {', '.join(unknown)} needs at least is not known: check that it still holds its weights."
    return Remedy(
        kind,
        title,
        tuple(changes),
        replace(layout, stages=replaced(layout, changed)),
        cost,
        note if unknown and kind is Kind.SHRINK else "",
    )


def loss_of(stage: Stage, wanted: Budget) -> Fraction:
    """The part of its budget that a stage gives up: a big stage feels 4 % of the card less than a small one."""
    if isinstance(wanted, Share) and isinstance(stage.budget, Share):
        return 1 - wanted.value / stage.budget.value
    if isinstance(wanted, Amount) and isinstance(stage.budget, Amount):
        return 1 - Fraction(wanted.value, stage.budget.value)
    return Fraction(1)


def size_of(layout: Layout, stage: Stage) -> Fraction:
    """Share of a card that a stage asks for, all copies; 0 where it is not known."""
    use = layout.uses.get(stage.slots[0]) if stage.slots else None
    return (use.share_of(stage) if use else None) or Fraction(0)


def by_name(layout: Layout, name: str) -> Stage:
    """The stage of that name."""
    return next(stage for stage in layout.stages if stage.name == name)


def replaced(layout: Layout, changed: Mapping[str, Stage]) -> tuple[Stage, ...]:
    """The layout's stages, some exchanged."""
    return tuple(changed.get(stage.name, stage) for stage in layout.stages)


def nothing_known(stage: Stage, layout: Layout) -> int | None:
    """A floor for models whose size nobody knows."""
    del stage, layout
    return None
