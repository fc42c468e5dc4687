"""vLLM-Omni's present form: a deploy file with `stages` by id, `base_config`, `platforms` and `connectors`.

Merging follows `resolve_deploy_yaml` of 0.30.0: the overlay wins field by field, stages and platforms merge by
stage_id, connectors merge deeply. Bases are read within the given folder only; loops and long chains are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_operator.importing import reading, vllm
from omni_operator.importing.files import MAX_BASES, Read
from omni_operator.importing.found import Form, Found
from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.importing.reading import Data

DEFAULT_PLATFORM = "cuda"
"""Whose section applies on NVIDIA's GPUs."""
_DEEP = (
    "default_sampling_params",
    "default_pooling_params",
    "subtalker_sampling_params",
    "engine_extras",
    "engine_args",
)


def read(data: Data, form: Form, file_name: str, follow: Read, overrides: Data) -> dict[str, Found]:
    """The file by platform; `cuda` always, and first. `overrides`: settings by stage id that win over all."""
    chain = [file_name]
    whole = _with_bases(data, chain, follow)
    pipeline, named = vllm.pipeline_of(whole, chain)
    if pipeline is None:
        pipeline = reading.text(whole, "model_type")
    platforms = reading.mapping(whole, "platforms")
    found = {
        platform: _found(whole, form, pipeline, [*_sections(platforms, platform), *_overrides(overrides)])
        for platform in dict.fromkeys([DEFAULT_PLATFORM, *platforms])
    }
    if pipeline is not None and not named:
        note = Note(
            NoteKind.ASSUMPTION,
            NoteReason.PIPELINE_UNKNOWN,
            f"Taken for pipeline {pipeline}, whose deploy file has this name.",
            "pipeline",
        )
        found = {key: _noted(value, note) for key, value in found.items()}
    return found


def _sections(platforms: Data, platform: str) -> list[tuple[str, Data]]:
    section = reading.mapping(platforms, platform, "platforms")
    path = f"platforms.{platform}"
    return [(f"{path}.stages[{i}]", entry) for i, entry in enumerate(reading.mappings(section, "stages", path))]


def _overrides(overrides: Data) -> list[tuple[str, Data]]:
    if not all(key.isascii() and key.isdigit() and len(key) < 6 for key in overrides):
        raise ImportProblem('--stage-overrides must be a mapping by stage id, such as {"0": {…}}')
    return [
        (f"--stage-overrides[{key}]", {**reading.mapping(overrides, key, "--stage-overrides"), "stage_id": int(key)})
        for key in overrides
    ]


def _found(whole: Data, form: Form, pipeline: str | None, changes: list[tuple[str, Data]]) -> Found:
    notes: list[Note] = []
    if pipeline is not None and pipeline not in vllm.registry():
        notes.append(
            Note(
                NoteKind.REFUSED_UPSTREAM,
                NoteReason.PIPELINE_UNKNOWN,
                f"vLLM-Omni {vllm.VERSION} has no pipeline {reading.shown(pipeline)}.",
                "pipeline",
                vllm.VERSION,
            )
        )
    entries = [(_path(entry, i), entry) for i, entry in enumerate(reading.mappings(whole, "stages"))]
    if not entries:
        raise ImportProblem("has no stages; nothing is left to import")
    rows = _changed(vllm.stage_ids(entries), changes, notes)
    stages = vllm.stages(rows, pipeline, whole, notes)
    notes += vllm.missing_stages([number for number, _, _ in rows], pipeline)
    notes += vllm.connectors(rows, reading.mapping(whole, "connectors"))
    notes += vllm.engine_notes(whole)
    return Found(form, stages, tuple(notes), pipeline=pipeline)


def _path(entry: Data, index: int) -> str:
    number = entry.get("stage_id")
    return f"stages[stage_id={number}]" if isinstance(number, int) else f"stages[{index}]"


def _changed(
    rows: list[tuple[int, str, Data]], changes: list[tuple[str, Data]], notes: list[Note]
) -> list[tuple[int, str, Data]]:
    """Each stage with what is said of it elsewhere; ids that the file does not have are ignored, as upstream does."""
    result = {number: (path, body) for number, path, body in rows}
    for where, change in changes:
        number = reading.count(change, "stage_id", where, least=0)
        if number is None:
            raise ImportProblem(f"{where} has no stage_id")
        if number in result:
            path, body = result[number]
            result[number] = (path, _flat_over(body, change, where))
        else:
            notes.append(
                Note(
                    NoteKind.WARNING,
                    NoteReason.STAGE_UNKNOWN,
                    f"The file has no stage {number}, so this changes nothing.",
                    where,
                )
            )
    return [(number, path, body) for number, (path, body) in result.items()]


def _flat_over(body: Data, over: Data, path: str) -> dict[str, Any]:
    """A platform's stage may be flat or nested; either way it wins over both spellings of the base."""
    result = dict(body)
    runtime = dict(reading.mapping(body, "runtime"))
    arguments = dict(reading.mapping(body, "engine_args"))
    changes = {key: value for key, value in over.items() if key not in ("stage_id", "engine_args", "runtime")}
    changes.update(reading.mapping(over, "engine_args", path))
    changes.update(reading.mapping(over, "runtime", path))
    for key, value in changes.items():
        runtime.pop(key, None)
        arguments.pop(key, None)
        result[key] = value
    if runtime:
        result["runtime"] = runtime
    else:
        result.pop("runtime", None)
    if arguments:
        result["engine_args"] = arguments
    else:
        result.pop("engine_args", None)
    return result


def _with_bases(data: Data, chain: list[str], follow: Read) -> dict[str, Any]:
    base = data.get("base_config")
    own = {key: value for key, value in data.items() if key != "base_config"}
    if base is None:
        return own
    if not isinstance(base, str) or not base.strip():
        raise ImportProblem(f"base_config must be the path of a file, not {reading.shown(base)}", chain[-1])
    name, below = follow(chain[-1], base.strip())
    if name in chain:
        raise ImportProblem(f"base_config goes round in a circle: {' → '.join([*chain, name])}", chain[0])
    if len(chain) >= MAX_BASES:
        raise ImportProblem(f"base_config leads through more than {MAX_BASES} files", chain[0])
    if "stage_args" in below:
        raise ImportProblem(
            f"base_config {base!r} has the old form, stage_args, which no deploy file can build on", name
        )
    chain.append(name)
    return _overlay(_with_bases(below, chain, follow), own)


def _overlay(base: Data, over: Data) -> dict[str, Any]:
    result = {**base, **over}
    connectors = _deep(reading.mapping(base, "connectors"), reading.mapping(over, "connectors"))
    if connectors:
        result["connectors"] = connectors
    result["stages"] = _by_id(base, over, "")
    platforms = _platforms(reading.mapping(base, "platforms"), reading.mapping(over, "platforms"))
    if platforms:
        result["platforms"] = platforms
    return result


def _platforms(base: Data, over: Data) -> dict[str, Any]:
    result = {}
    for name in dict.fromkeys([*base, *over]):
        below, above = reading.mapping(base, name, "platforms"), reading.mapping(over, name, "platforms")
        result[name] = {**below, **above, "stages": _by_id(below, above, f"platforms.{name}")}
    return result


def _by_id(base: Data, over: Data, path: str) -> list[Data]:
    def rows(data: Data) -> list[tuple[int, str, Data]]:
        entries = reading.mappings(data, "stages", path)
        return vllm.stage_ids((reading.at(path, f"stages[{i}]"), entry) for i, entry in enumerate(entries))

    merged: dict[int, Data] = {number: body for number, _, body in rows(base)}
    for number, _, body in rows(over):
        below = merged.get(number, {})
        deep = {
            key: _deep(inner, body[key]) if isinstance(body.get(key), dict) else body[key]
            for key, inner in below.items()
            if key in _DEEP and key in body and isinstance(inner, dict)
        }
        merged[number] = {**below, **body, **deep}
    return list(merged.values())


def _deep(base: Data, over: Data) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = _deep(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _noted(found: Found, note: Note) -> Found:
    values: Mapping[str, Any] = {key: getattr(found, key) for key in found.__dataclass_fields__}
    return Found(**{**values, "notes": (note, *found.notes)})
