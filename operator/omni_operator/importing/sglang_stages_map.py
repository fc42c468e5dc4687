"""sglang-omni's present form: `stages` by name, with `processes`, `mps`, `weight_share` and `shared` beside it.

Also the split of a stage into a prefill and a decode half, `pd_disaggregation`, which 0.1.9 does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_operator.importing import reading, sglang, variants
from omni_operator.importing.found import Form, Found, FoundStage
from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.importing.reading import Data

_READ = ("gpu", "tp_size", "process", "gpu_memory_fraction", "total_reserve_bytes", "engine", "factory", "env",
         "runtime_gpu_ids")  # fmt: skip
_WIRING = ("factory_path", "next", "terminal", "route_fn", "wait_for", "wait_for_fn", "merge_fn", "stream_to",
           "stream_done_to_fn", "can_accept_stream_before_payload", "project_payload")  # fmt: skip
_TRANSPORT = ("comm", "disable_direct_cuda_ipc_payload", "http_routes", "enforce_total_reserve")
_KNOWN = (*_READ, *_WIRING, *_TRANSPORT, "allow_child_processes")
_SPLIT = "pd_disaggregation"
_HALVES = ("prefill", "decode")


def read(data: Data) -> Found:
    """A file of this form."""
    notes: list[Note] = []
    stages: list[FoundStage] = []
    bodies = reading.mapping(data, "stages")
    shared = _shared_entries(data, _all_names(bodies, data))
    for name in dict.fromkeys([*bodies, *(name for selected, _ in shared for name in selected)]):
        body: dict[str, Any] = {}
        for selected, settings in shared:
            body = _merge(body, settings) if name in selected else body
        # What a stage says itself wins over what is broadcast to it.
        stages += _stage(name, _merge(body, reading.mapping(bodies, name, "stages")), notes)
    if isinstance(data.get("mps"), bool) or isinstance(data.get("weight_share"), bool):
        notes.append(sglang.refused('unquoted, on and off are booleans in YAML; write "on" or "off"'))
    return sglang.found(Form.SGLANG_STAGES_MAP, data, stages, notes)


def _stage(name: str, body: Data, notes: list[Note]) -> list[FoundStage]:
    path = f"stages.{name}"
    notes += sglang.unused(body, path, _WIRING, "the catalogue's pipeline says how stages are wired")
    notes += sglang.unused(body, path, _TRANSPORT, "the operator decides this itself")
    notes += sglang.unknown(body, path, (*_KNOWN, _SPLIT))
    whole = sglang.stage(
        name,
        path,
        body,
        budget=sglang.budget(path, body, "gpu_memory_fraction", notes),
        engine=reading.mapping(body, "engine", path),
        factory=reading.mapping(body, "factory", path),
    )
    split = reading.mapping(body, _SPLIT, path)
    if not split or split.get("enabled") is False:
        return [whole]
    return [_half(whole, half, split, notes) for half in _HALVES]


def _half(whole: FoundStage, half: str, split: Data, notes: list[Note]) -> FoundStage:
    """One half of a split stage; what it does not say is as the whole stage has it."""
    path = f"{whole.path}.{_SPLIT}.{half}"
    body = reading.mapping(split, half, f"{whole.path}.{_SPLIT}")
    keys = [key for key in ("memory_fraction", "gpu_memory_fraction") if key in body] or ["gpu_memory_fraction"]
    budget = sglang.budget(path, body, keys[0], notes)
    if half == _HALVES[0]:
        notes.append(sglang.refused(f"{_SPLIT} is no field of it", f"{whole.path}.{_SPLIT}"))
        notes.append(
            Note(
                NoteKind.NOT_CARRIED,
                NoteReason.PREFILL_DECODE_SPLIT,
                "An OmniModel runs a stage whole. Both halves are counted in the sums, but the manifest has one stage.",
                f"{whole.path}.{_SPLIT}",
            )
        )
    where = next((key for key in ("gpu", "gpus", "devices") if key in body), None)
    number = reading.count(body, "num_replicas", path) or reading.count(body, "replicas", path) or 1
    devices = whole.devices if where is None else reading.devices(body, where, path)
    return FoundStage(
        name=f"{whole.name}@{half}",
        path=path,
        devices=devices,
        ranks=reading.count(body, "tp_size", path) or whole.ranks,
        budget=budget or whole.budget,
        process=f"{whole.process or whole.name}@{half}",
        copies=() if number == 1 or devices is None else (devices,) * number,
    )


def _shared_entries(data: Data, names: Sequence[str]) -> list[tuple[list[str], dict[str, Any]]]:
    """Each entry of `shared`: the stages that it selects, and what it writes to them."""
    return [
        (_selected(entry, f"shared[{i}]", names, data), {key: value for key, value in entry.items() if key != "select"})
        for i, entry in enumerate(reading.mappings(data, "shared"))
    ]


def _selected(entry: Data, path: str, names: Sequence[str], data: Data) -> list[str]:
    select = reading.mapping(entry, "select", path)
    for key in select:
        if key not in ("stages", "engine", "exclude"):
            raise ImportProblem(f"{path}.select: {key} selects nothing; stages, engine and exclude do")
    wanted = _names(select, "stages", path) if "stages" in select else list(names)
    if select.get("engine") is True:
        found = variants.find(reading.text(data, "config_cls"), reading.text(data, "model_path"))
        engines = {stage.name for stage in found[1].stages if stage.engine} if found else set(wanted)
        wanted = [name for name in wanted if name in engines]
    excluded = _names(select, "exclude", path)
    return [name for name in wanted if name not in excluded]


def _names(select: Data, key: str, path: str) -> list[str]:
    value = select.get(key) or []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ImportProblem(f"{path}.select.{key} must be a list of stage names")
    return value


def _all_names(bodies: Data, data: Data) -> list[str]:
    """Stages of the class, where the catalogue knows it, and those that the file names."""
    found = variants.find(reading.text(data, "config_cls"), reading.text(data, "model_path"))
    return list(dict.fromkeys([*([stage.name for stage in found[1].stages] if found else []), *bodies]))


def _merge(base: Data, over: Data) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
