"""Where the copies of stages go: from the file's devices and replicas to slots of our own numbering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.planning.layout import Stage

Groups = tuple[tuple[int, ...], ...]
"""The devices of each copy of a stage."""
MAX_COPIES = 512
"""Copies of a stage in one file; more is a typing error."""


@dataclass(frozen=True)
class Placed:
    """Slots by stage, one group per copy."""

    groups: Mapping[str, Groups]
    slots: Mapping[int, int]
    """The file's numbers → slots."""
    replicas: int = 1
    """How often the file runs the whole pipeline, each time on GPUs of its own."""
    moved: bool = False
    """Whether any number changed."""


def place(groups: Mapping[str, Groups]) -> Placed:
    """Slots without gaps for all devices in use, in the order of their numbers."""
    used = sorted({device for copies in groups.values() for group in copies for device in group})
    slots = {device: slot for slot, device in enumerate(used)}
    placed = {
        name: tuple(tuple(slots[device] for device in group) for group in copies) for name, copies in groups.items()
    }
    return Placed(placed, slots, _whole_replicas(placed), any(device != slot for device, slot in slots.items()))


def _whole_replicas(groups: Mapping[str, Groups]) -> int:
    """N where every stage on a GPU has N copies, and no two of the N sets of GPUs touch."""
    on_gpu = [copies for copies in groups.values() if any(copies)]
    numbers = {len(copies) for copies in on_gpu}
    if len(numbers) != 1 or numbers == {1}:
        return 1
    number = numbers.pop()
    sets = [{slot for copies in on_gpu for slot in copies[index]} for index in range(number)]
    same_size = len({len(one) for one in sets}) == 1
    return number if same_size and sum(map(len, sets)) == len(set().union(*sets)) else 1


def spread(stage: Stage, copies: Groups) -> Iterable[Stage]:
    """A stage once per set of slots; copies on the same slots are counted on it."""
    if len(copies) > MAX_COPIES:
        raise ImportProblem(f"{stage.name} would run {len(copies)} times; at most {MAX_COPIES} are counted")
    distinct = list(dict.fromkeys(copies))
    if len(distinct) <= 1:
        yield replace(stage, slots=distinct[0] if distinct else (), copies=max(1, len(copies)))
        return
    for group in distinct:
        name = f"{stage.name}@r{copies.index(group)}"
        process = f"{stage.process}@r{copies.index(group)}"
        yield replace(stage, name=name, process=process, slots=group, copies=copies.count(group))


def copy_notes(placed: Placed, paths: Mapping[str, str]) -> list[Note]:
    """Notes for what an OmniModel cannot say: copies of single stages within one replica."""
    notes = []
    if placed.moved:
        listed = ", ".join(f"{device} → {slot}" for device, slot in placed.slots.items())
        notes.append(
            Note(
                NoteKind.UNIT,
                NoteReason.DEVICES_RENUMBERED,
                f"Slots are counted from 0 without gaps, so the file's devices became slots: {listed}.",
            )
        )
    if placed.replicas > 1:
        notes.append(
            Note(
                NoteKind.UNIT,
                NoteReason.STAGE_COPIES,
                f"The file runs the whole pipeline {placed.replicas} times on GPUs of their own: spec.replicas.",
                "spec.replicas",
            )
        )
        return notes
    notes += [
        Note(
            NoteKind.NOT_CARRIED,
            NoteReason.STAGE_COPIES,
            f"The file runs {name} {len(copies)} times. An OmniModel runs each stage once per replica: the "
            "sums count all "
            "copies, the manifest has one.",
            paths.get(name, name),
        )
        for name, copies in placed.groups.items()
        if len(copies) > 1 and any(copies)
    ]
    return notes


def first(copies: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The slots of the copy that the manifest has."""
    return copies[0] if copies else ()
