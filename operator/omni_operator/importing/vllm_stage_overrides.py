"""The JSON of vLLM-Omni's `--stage-overrides`: settings by stage id, which change a deploy file that is not in it."""

from __future__ import annotations

from omni_operator.importing import reading, vllm
from omni_operator.importing.found import Form, Found
from omni_operator.importing.notes import Note, NoteKind, NoteReason
from omni_operator.importing.reading import Data


def read(data: Data) -> Found:
    """Overrides as a file of their own. Without the deploy file, only what they say is known."""
    notes = [
        Note(
            NoteKind.ASK,
            NoteReason.PIPELINE_UNKNOWN,
            "These are overrides of a deploy file: which pipeline are they for? Stages that they leave out are not "
            "counted.",
            "spec.model.pipeline",
        )
    ]
    entries = [(reading.shown(key), {**reading.mapping(data, key), "stage_id": int(key[:6])}) for key in data]
    return Found(Form.VLLM_STAGE_OVERRIDES, vllm.stages(vllm.stage_ids(entries), None, {}, notes), tuple(notes))
