"""Two earlier forms of sglang-omni, alone or together: `stage_overrides` and `runtime_overrides`.

`stage_overrides` puts the budget under `runtime.resources` and the engine's arguments under
`runtime.sglang_server_args`; `runtime_overrides` gives factory arguments by stage, with the engine's under
`server_args_overrides`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_operator.importing import reading, sglang
from omni_operator.importing.found import Form, Found, FoundStage
from omni_operator.importing.notes import Note, NoteReason
from omni_operator.importing.reading import Data

_STAGE_KEYS = ("runtime", "gpu", "tp_size", "process", "env", "factory_args", "runtime_gpu_ids", "gpu_memory_fraction",
               "total_reserve_bytes")  # fmt: skip
_RESOURCES = ("total_gpu_memory_fraction", "total_reserve_bytes")
_ENGINE_KEYS = ("sglang_server_args", "server_args_overrides")


def read(data: Data, form: Form) -> Found:
    """A file with either block, or both."""
    notes = [
        sglang.refused(f"{block} was removed; the same settings go under stages.<name>", block, NoteReason.OLD_FORM)
        for block in ("stage_overrides", "runtime_overrides")
        if block in data
    ]
    return sglang.found(form, data, stages(data, notes), notes)


def stages(data: Data, notes: list[Note], known: Mapping[str, Data] | None = None) -> list[FoundStage]:
    """The stages that the blocks name, on top of `known` bodies of the list form."""
    over = reading.mapping(data, "stage_overrides")
    runtime = reading.mapping(data, "runtime_overrides")
    names = dict.fromkeys([*(known or {}), *over, *runtime])
    return [_stage(name, over, runtime, notes) for name in names]


def _stage(name: str, over: Data, runtime: Data, notes: list[Note]) -> FoundStage:
    path = f"stage_overrides.{name}" if name in over else f"runtime_overrides.{name}"
    body = reading.mapping(over, name, "stage_overrides")
    notes += sglang.unknown(body, path, _STAGE_KEYS)
    settings = reading.mapping(body, "runtime", path)
    engine, factory = split_runtime(settings, f"{path}.runtime", notes)
    factory = {**reading.mapping(body, "factory_args", path), **factory}
    later_engine, later_factory = split_runtime(
        reading.mapping(runtime, name, "runtime_overrides"), f"runtime_overrides.{name}", notes
    )
    return sglang.stage(
        name,
        path,
        body,
        budget=budget_of(body, path, notes),
        engine={**engine, **later_engine},
        factory={**factory, **later_factory},
    )


def budget_of(body: Data, path: str, notes: list[Note]) -> Any:
    """The budget, under `runtime.resources` or, as the form of today writes it, on the stage itself."""
    resources = reading.mapping(reading.mapping(body, "runtime", path), "resources", f"{path}.runtime")
    inner = sglang.budget(f"{path}.runtime.resources", resources, "total_gpu_memory_fraction", notes)
    return inner or sglang.budget(path, body, "gpu_memory_fraction", notes)


def split_runtime(settings: Data, path: str, notes: list[Note]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Engine arguments and factory arguments of a block that mixes them."""
    resources = reading.mapping(settings, "resources", path)
    notes += sglang.unused(
        resources, f"{path}.resources", [key for key in resources if key not in _RESOURCES], "it is no memory budget"
    )
    engine: dict[str, Any] = {}
    for key in _ENGINE_KEYS:
        engine.update(reading.mapping(settings, key, path))
    factory = {key: value for key, value in settings.items() if key not in (*_ENGINE_KEYS, "resources")}
    return engine, factory
