"""Which devices each copy of a stage of sglang-omni has: `gpu`, `tp_size`, and the replicas of its process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from omni_operator.catalogue import StageDefault
from omni_operator.importing.found import FoundStage
from omni_operator.importing.notes import Note, NoteKind, NoteReason
from omni_operator.importing.placing import MAX_COPIES, Groups

Replicas = Mapping[str, tuple[int, tuple[int, ...] | None]]


def groups_of(
    stages: Iterable[FoundStage], defaults: Mapping[str, StageDefault], replicas: Replicas, notes: list[Note]
) -> dict[str, Groups]:
    """The devices of every copy of every stage, as `config/topology.py` of 0.1.9 expands them."""
    listed = [_with_devices(stage, defaults.get(stage.name.partition("@")[0]), notes) for stage in stages]
    groups: dict[str, Groups] = {stage.name: stage.copies or (stage.devices or (),) for stage in listed}
    members: dict[str, list[FoundStage]] = {}
    for stage in listed:
        members.setdefault(_process(stage, defaults.get(stage.name)), []).append(stage)
    for process, (number, devices) in replicas.items():
        if process not in members:
            notes.append(_no_process(process, members))
            continue
        groups.update(_replicated(process, number, devices, members[process], notes))
    return groups


def _with_devices(stage: FoundStage, default: StageDefault | None, notes: list[Note]) -> FoundStage:
    devices = stage.devices if stage.devices is not None else (default.slots if default else ())
    ranks = stage.ranks or 1
    if stage.ranks is None or ranks == len(devices) or (ranks == 1 and not devices):
        return replace(stage, devices=devices)
    if stage.devices is None and len(devices) <= 1:
        start = devices[0] if devices else 0
        what = f"{ranks} ranks need {ranks} devices, and gpu lists none. Counted from device {start} on"
        notes.append(_ask(what, f"{stage.path}.gpu", NoteReason.DEVICES_MISSING))
        return replace(stage, devices=tuple(range(start, start + ranks)))
    what = f"{ranks} ranks, but {len(devices)} devices are listed. The stage is counted on all that are listed"
    notes.append(_ask(what, f"{stage.path}.gpu", NoteReason.DEVICE_COUNT_MISMATCH))
    return replace(stage, devices=devices)


def _process(stage: FoundStage, default: StageDefault | None) -> str:
    return stage.process or (default.process if default else stage.name)


def _replicated(
    process: str, number: int, devices: tuple[int, ...] | None, members: list[FoundStage], notes: list[Note]
) -> dict[str, Groups]:
    """Copies of the process's stages. Replicas of a process without a GPU change no sum."""
    field = f"processes.{process}.replica_devices"
    placed = [stage for stage in members if stage.devices] or (members if devices else [])
    ranks = max((len(stage.devices or (0,)) for stage in placed), default=1)
    if number > MAX_COPIES:
        number = MAX_COPIES + 1
    if devices is None:
        if number > 1 and placed:
            what = f"{number} replicas need {number * ranks} devices, and none are listed. Counted once"
            notes.append(_ask(what, field, NoteReason.DEVICES_MISSING))
        return {}
    if len(devices) != number * ranks:
        notes.append(
            _ask(
                f"{len(devices)} devices are listed for {number} replicas of {ranks} ranks; {number * ranks} "
                "would fit. Counted "
                "on all that are listed",
                field,
                NoteReason.DEVICE_COUNT_MISMATCH,
            )
        )
        return {stage.name: tuple((device,) for device in devices) for stage in placed}
    copies = tuple(devices[index * ranks : (index + 1) * ranks] for index in range(number))
    return {stage.name: copies for stage in placed}


def _no_process(process: str, members: Mapping[str, list[FoundStage]]) -> Note:
    return _ask(
        f"There is no process {process}; there are {', '.join(members) or 'none'}. Its replicas are not counted",
        f"processes.{process}",
        NoteReason.STAGE_UNKNOWN,
    )


def _ask(what: str, field: str, reason: NoteReason) -> Note:
    return Note(NoteKind.ASK, reason, f"{what}.", field)
