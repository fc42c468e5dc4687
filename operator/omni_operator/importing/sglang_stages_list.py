"""sglang-omni's earliest form: the whole `stages` list, each with its factory, as the class itself declares it.

Two generations: `executor: {factory, args}` with `get_next` (spring 2026), and `factory`, `factory_args`, `gpu`,
`process` and `runtime` later. Wiring is not carried over: the catalogue's pipeline has it.
"""

from __future__ import annotations

from typing import Any

from omni_operator.importing import reading, sglang, sglang_overrides
from omni_operator.importing.found import Form, Found, FoundStage
from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.importing.reading import Data

_ENGINE_KEYS = ("server_args_overrides", "sglang_server_args")
_DEVICE_KEYS = ("device", "gpu_id")


def read(data: Data) -> Found:
    """A file of this form. Overrides beside the list are applied to it."""
    notes = [
        sglang.refused(
            "stages must be a mapping by stage name, and topology belongs to the class", "stages", NoteReason.OLD_FORM
        )
    ]
    placement = reading.mapping(data, "gpu_placement")
    stages: dict[str, FoundStage] = {}
    for i, body in enumerate(reading.mappings(data, "stages")):
        stage = _stage(body, f"stages[{i}]", placement, notes)
        if stage.name in stages:
            raise ImportProblem(f"stages[{i}]: there are two stages named {reading.shown(stage.name)}")
        stages[stage.name] = stage
    notes += [
        sglang.refused(f"{block} was removed", block, NoteReason.OLD_FORM)
        for block in ("stage_overrides", "runtime_overrides")
        if block in data
    ]
    for over in sglang_overrides.stages(data, notes):
        stages[over.name] = _overridden(stages[over.name], over) if over.name in stages else over
    return sglang.found(Form.SGLANG_STAGES_LIST, data, stages.values(), notes)


def _stage(body: Data, path: str, placement: Data, notes: list[Note]) -> FoundStage:
    name = reading.text(body, "name", path)
    if name is None:
        raise ImportProblem(f"{path} has no name")
    executor = reading.mapping(body, "executor", path)
    arguments = {**reading.mapping(executor, "args", f"{path}.executor"), **reading.mapping(body, "factory_args", path)}
    engine, factory = sglang_overrides.split_runtime(reading.mapping(body, "runtime", path), f"{path}.runtime", notes)
    for key in _ENGINE_KEYS:
        engine = {**reading.mapping(arguments, key, path), **engine}
    devices = _of_all_ranks(_devices(body, arguments, placement, name, path), arguments, path, notes)
    workers = reading.count(body, "num_workers", path) or 1
    kept = {k: v for k, v in arguments.items() if k not in (*_ENGINE_KEYS, *_DEVICE_KEYS) and not k.endswith("_device")}
    return sglang.stage(
        name,
        path,
        body,
        budget=sglang_overrides.budget_of(body, path, notes),
        engine=engine,
        factory={**kept, **factory},
        devices=devices,
        copies=(devices,) * workers if workers > 1 and devices else (),
    )


def _of_all_ranks(
    devices: tuple[int, ...] | None, arguments: Data, path: str, notes: list[Note]
) -> tuple[int, ...] | None:
    """The factory of a split stage was given its first device, and each rank the next one."""
    ranks = reading.count(arguments, "tp_size", path) or 1
    if ranks == 1 or devices == () or len(devices or ()) > 1:
        return devices
    first = devices[0] if devices else 0
    spread = tuple(range(first, first + ranks))
    listed = ", ".join(map(str, spread))
    message = f"{ranks} ranks were started by hand, each on the next device: counted on {listed}."
    notes.append(Note(NoteKind.ASSUMPTION, NoteReason.DEVICES_MISSING, message, f"{path}.executor.args.tp_size"))
    return spread


def _devices(body: Data, arguments: Data, placement: Data, name: str, path: str) -> tuple[int, ...] | None:
    """`gpu` on the stage, its place in gpu_placement, or the device that its factory is given."""
    if body.get("gpu") is not None:
        return reading.devices(body, "gpu", path)
    if name in placement:
        return reading.devices(placement, name, "gpu_placement")
    for key in _DEVICE_KEYS:
        if key in arguments:
            value = arguments[key]
            if value == "cuda":
                return (0,)
            return reading.devices(arguments, key, path)
    return None


def _overridden(stage: FoundStage, over: FoundStage) -> FoundStage:
    changes: dict[str, Any] = {
        key: value
        for key in ("devices", "ranks", "budget", "kv_cache", "process", "static_fraction")
        if (value := getattr(over, key)) is not None
    }
    return FoundStage(
        **{
            **{key: getattr(stage, key) for key in stage.__dataclass_fields__},
            **changes,
            "token_cap": stage.token_cap or over.token_cap,
            "engine_args": {**stage.engine_args, **over.engine_args},
            "env": {**stage.env, **over.env},
        }
    )
