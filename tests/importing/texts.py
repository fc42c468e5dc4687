"""Short files to import, and what came of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import yaml

from omni_operator.importing import Imported, NoteKind, NoteReason, import_text, slot_sums


def deploy(*stages: Mapping[str, Any], **rest: Any) -> Imported:
    entries = [{"stage_id": i, **stage} for i, stage in enumerate(stages)]
    return import_text(json.dumps({"stages": entries, **rest}))


def stages_map(stages: Mapping[str, Any], config_cls: str = "Qwen3OmniSpeechPipelineConfig", **rest: Any) -> Imported:
    return import_text(yaml.safe_dump({"config_cls": config_cls, "model_path": "org/model", "stages": stages, **rest}))


def shares(result: Imported) -> dict[int, Fraction]:
    return {slot: one.share for slot, one in slot_sums(result.layout).items()}


def reasons(result: Imported, kind: NoteKind) -> list[NoteReason]:
    return [note.reason for note in result.notes if note.kind is kind]
