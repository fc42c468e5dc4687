"""vLLM-Omni's old form: a `stage_args` list with `runtime` and `engine_args`, and `runtime.connectors` beside it."""

from __future__ import annotations

from omni_operator.importing import reading, vllm
from omni_operator.importing.found import Form, Found
from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.importing.reading import Data

_ARCHITECTURES = {
    "Qwen3OmniMoeForConditionalGeneration": "qwen3_omni_moe",
    "Qwen2_5OmniForConditionalGeneration": "qwen2_5_omni",
}
"""Architectures whose stages are told apart by model_stage alone."""


def read(data: Data) -> Found:
    """A file of this form."""
    entries = [(f"stage_args[{i}]", entry) for i, entry in enumerate(reading.mappings(data, "stage_args"))]
    if not entries:
        raise ImportProblem("stage_args is empty; nothing is left to import")
    notes = [
        Note(
            NoteKind.REFUSED_UPSTREAM,
            NoteReason.OLD_FORM,
            f"vLLM-Omni {vllm.VERSION} and later refuse this: stage_args was removed; topology belongs to the "
            "pipeline, "
            "and settings go under stages.",
            "stage_args",
            vllm.VERSION,
        )
    ]
    rows = vllm.stage_ids(entries)
    runtime = reading.mapping(data, "runtime")
    pipeline = _pipeline(rows)
    # Stage ids are this file's own here, not the registry's, so the registry may not name them.
    stages = vllm.stages(rows, None, data, notes)
    notes += vllm.connectors(rows, reading.mapping(runtime, "connectors", "runtime"), "runtime.connectors")
    notes += vllm.engine_notes(data)
    return Found(Form.VLLM_STAGE_ARGS, stages, tuple(notes), pipeline=pipeline)


def _pipeline(rows: list[tuple[int, str, Data]]) -> str | None:
    names = set()
    for _, path, body in rows:
        arguments = reading.mapping(body, "engine_args", path)
        names.add(reading.text(arguments, "model_arch", f"{path}.engine_args"))
    known = {_ARCHITECTURES[name] for name in names if name in _ARCHITECTURES}
    return known.pop() if len(known) == 1 else None
