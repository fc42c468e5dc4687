"""What vLLM-Omni's forms have in common: stage names from its registry, connectors, and what cannot be carried over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from omni_operator.importing import reading, vllm_stage
from omni_operator.importing.found import FoundStage
from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.importing.reading import Data

VERSION = "0.30.0"
WIDE = ("data_parallel_size", "pipeline_parallel_size", "dtype", "quantization", "enable_prefix_caching",
        "enable_chunked_prefill", "trust_remote_code", "distributed_executor_backend")  # fmt: skip
"""Settings for all stages that stand beside them."""


@dataclass(frozen=True)
class UpstreamPipeline:
    """A pipeline of vLLM-Omni's registry."""

    name: str
    stages: tuple[tuple[str, str], ...]
    """(model_stage, ar | generation | diffusion) in the order of stage ids."""
    deploy: str
    """The deploy file that belongs to it, or the name that it would have."""


@cache
def registry() -> Mapping[str, UpstreamPipeline]:
    """vLLM-Omni 0.30.0's pipelines by name, from the data file that is made from the package."""
    text = (files("omni_operator.importing") / "data" / "vllm_pipelines.json").read_text(encoding="utf-8")
    return {
        name: UpstreamPipeline(name, tuple((s, k) for s, k in row["stages"]), row.get("deploy", f"{name}.yaml"))
        for name, row in json.loads(text)["pipelines"].items()
    }


def pipeline_of(data: Data, file_names: Iterable[str]) -> tuple[str | None, bool]:
    """The pipeline that a deploy file names, or whose deploy file has its name; and whether it names it."""
    named = reading.text(data, "pipeline")
    if named is not None:
        return named, True
    for file_name in file_names:
        base = file_name.rpartition("/")[2]
        matching = [pipeline.name for pipeline in registry().values() if pipeline.deploy == base]
        if len(matching) == 1:
            return matching[0], False
    return None, False


def stage_ids(entries: Iterable[tuple[str, Data]]) -> list[tuple[int, str, Data]]:
    """(id, path, body) of each entry, rising. Raises ImportProblem where an id is missing or given twice."""
    result: dict[int, tuple[int, str, Data]] = {}
    for path, body in entries:
        number = reading.count(body, "stage_id", path, least=0)
        if number is None:
            raise ImportProblem(f"{path} has no stage_id")
        if number in result:
            raise ImportProblem(f"{path}: there are two stages with stage_id {number}")
        result[number] = (number, path, body)
    return sorted(result.values(), key=lambda row: row[0])


def stages(
    rows: Iterable[tuple[int, str, Data]], pipeline: str | None, wide: Data, notes: list[Note]
) -> tuple[FoundStage, ...]:
    """The stages of a file. Names are the file's own, else the registry's, else stage_0, stage_1, …"""
    known = registry().get(pipeline or "")
    result: list[FoundStage] = []
    for number, path, body in rows:
        flat = vllm_stage.merged(body, path)
        own = known.stages[number] if known is not None and number < len(known.stages) else None
        name = reading.text(flat, "model_stage", path) or (own[0] if own else f"stage_{number}")
        if any(stage.name == name for stage in result):
            name = f"{name}_{number}"
        result.append(vllm_stage.read(flat, path, name, None if own is None else own[1] == "diffusion", wide, notes))
        if isinstance(flat.get("model"), str):
            notes.append(_not_carried(f"{path}.model", f"{name} has a model of its own, {flat['model']}"))
        if reading.mapping(flat, "env", path):
            notes.append(_not_carried(f"{path}.env", "the variables are vLLM-Omni's or its platform's"))
    return tuple(result)


def missing_stages(found: Iterable[int], pipeline: str | None) -> list[Note]:
    """Stages of the pipeline that the file leaves out run with the engine's defaults; others are ignored."""
    known = registry().get(pipeline or "")
    if known is None:
        return []
    present = set(found)
    notes = [
        Note(
            NoteKind.ASK,
            NoteReason.STAGE_MISSING,
            f"Stage {number} ({name}) of {known.name} is not in the file: where does it run, and with which share?",
            f"stages[stage_id={number}]",
        )
        for number, (name, _) in enumerate(known.stages)
        if number not in present
    ]
    notes += [
        Note(
            NoteKind.REFUSED_UPSTREAM,
            NoteReason.STAGE_UNKNOWN,
            f"vLLM-Omni {VERSION} ignores stage {number}: {known.name} has {len(known.stages)} stages.",
            f"stages[stage_id={number}]",
            VERSION,
        )
        for number in sorted(present)
        if number >= len(known.stages)
    ]
    return notes


def connectors(rows: Iterable[tuple[int, str, Data]], defined: Data, path: str = "connectors") -> list[Note]:
    """Notes for the connectors that stages use. The operator moves data itself, so none is carried over."""
    used: dict[str, str] = {}
    for _, stage_path, body in rows:
        for key in ("input_connectors", "output_connectors"):
            for edge, name in reading.mapping(body, key, stage_path).items():
                if not isinstance(name, str):
                    raise ImportProblem(f"{stage_path}.{key}.{edge} must name a connector, not {reading.shown(name)}")
                used.setdefault(name, f"{stage_path}.{key}.{edge}")
    notes = []
    for name, place in used.items():
        if name not in defined:
            raise ImportProblem(f"{place}: there is no connector {reading.shown(name)} under {path}")
        kind = reading.text(reading.mapping(defined, name, path), "name", f"{path}.{name}") or name
        notes.append(_connector_note(kind, f"{path}.{name}"))
    return notes


def _connector_note(kind: str, path: str) -> Note:
    if "sharedmemory" in kind.lower().replace("_", ""):
        return Note(
            NoteKind.NOT_CARRIED,
            NoteReason.SHARED_MEMORY,
            f"{kind} does not reach from one pod to another. Stages are pods of their own here, and the "
            "operator moves the "
            "data; stages that must share memory need the same process.",
            path,
        )
    return _not_carried(path, f"{kind}: the operator moves the data between pods itself")


_OF_A_STAGE = ("devices", "gpu_memory_utilization", "kv_cache_memory_bytes", "num_replicas", "tensor_parallel_size")
"""Fields of a stage that people write for all of them (vllm-project/vllm-omni#2516)."""


def engine_notes(data: Data) -> list[Note]:
    """Notes for settings beside the stages."""
    notes = [
        _not_carried(key, "it is an argument of vLLM-Omni's engine, and stages run on sglang-omni here")
        for key in WIDE
        if data.get(key) is not None
    ]
    notes += [
        Note(
            NoteKind.WARNING,
            NoteReason.NOT_SUPPORTED,
            f"{key} beside the stages is not counted: what each stage says itself wins. Write it at the stages.",
            key,
        )
        for key in _OF_A_STAGE
        if data.get(key) is not None
    ]
    notes += [
        _not_carried(key, "an OmniModel runs all its stages, and has no such setting")
        for key in ("modes", "session_mode", "duplex_session")
        if data.get(key)
    ]
    return notes


def _not_carried(field: str, why: str) -> Note:
    return Note(NoteKind.NOT_CARRIED, NoteReason.NOT_SUPPORTED, f"Not carried over: {why}.", field)
