"""The OmniModel as plain data, with the fields that every import shares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from omni_operator.api.names import API_VERSION, KIND
from omni_operator.api.quantities import Amount, Budget, Share
from omni_operator.api.v1alpha1 import MAX_SLOTS, OmniModelSpec
from omni_operator.catalogue import Card
from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.importing.percent import percent_text

MAX_NAME = 40
"""Pod names add the replica and the process to it, and have 63 characters at most."""
ENGINE = "sglang-omni"


def manifest(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The whole object."""
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": dict(spec)}


def object_name(*wanted: str | None) -> str:
    """The first usable name as Kubernetes allows it; `omni-model` where none is."""
    for text in wanted:
        label = re.sub(r"[^a-z0-9]+", "-", (text or "").lower()).strip("-")[:MAX_NAME].strip("-")
        if label:
            return label if label[0].isalpha() else f"m-{label}"[:MAX_NAME].strip("-")
    return "omni-model"


def stem(source: str) -> str:
    """The name of a file without folders and suffix."""
    return PurePath(source).stem


def stage_name(text: str) -> str:
    """A stage's name as an OmniModel allows it."""
    label = re.sub(r"[^a-z0-9_-]+", "_", text.lower()).strip("_-")[:MAX_NAME].strip("_-")
    return label if label[:1].isalpha() else f"stage_{label}".strip("_")[:MAX_NAME]


def budget_text(budget: Budget, field: str, notes: list[Note]) -> str | int:
    """A budget as gpuMemory: a percentage, or an amount in the largest unit that is exact."""
    if isinstance(budget, Amount):
        return amount_text(budget.value)
    return share_text(budget, field, notes)


def share_text(share: Share, field: str, notes: list[Note]) -> str:
    """A percentage, rounded down with a note where it has too many decimals."""
    text, exact = percent_text(share.value)
    if text == "0%":
        raise ImportProblem(f"{field}: the share {float(share.value):g} is too small to be written")
    if not exact:
        notes.append(Note(NoteKind.UNIT, NoteReason.UNIT, f"Rounded down to {text}.", field))
    return text


def amount_text(value: int) -> str | int:
    """`9Gi`, `1600Mi`, or bytes where no unit is exact."""
    for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if value % size == 0:
            return f"{value // size}{unit}"
    return value


def model_source(
    model: str | None, pipeline: str | None, variant: str | None, notes: list[Note], *, missing_pipeline: str = ""
) -> dict[str, Any]:
    """`spec.model`. What is missing is asked, and left out."""
    result: dict[str, Any] = {}
    if model is None:
        notes.append(
            Note(
                NoteKind.ASK, NoteReason.MODEL_UNKNOWN, "Which model? The file does not name one.", "spec.model.id"
            )
        )  # fmt: skip
    elif len(model) > 253:
        raise ImportProblem(f"the model's name has {len(model)} characters; 253 are allowed")
    else:
        result["id"] = model
    if pipeline is None:
        notes.append(Note(NoteKind.ASK, NoteReason.PIPELINE_UNKNOWN, missing_pipeline, "spec.model.pipeline"))
    else:
        result["pipeline"] = pipeline
        if variant is not None:
            result["variant"] = variant
    result["cache"] = {"emptyDir": {}}
    notes.append(
        Note(
            NoteKind.ASSUMPTION,
            NoteReason.CACHE,
            "Each pod downloads the model into scratch space; name a claim here to keep it.",
            "spec.model.cache",
        )
    )
    return result


def card_fields(card: Card) -> dict[str, str]:
    """`spec.gpus` for a card of the catalogue, or for an amount of memory."""
    return {"card": card.name} if card.product else {"memory": card.name}


def card_note(slots: int, card: str | None, notes: list[Note]) -> None:
    """Shares are shares of a card, and no file of these forms names it."""
    if slots and card is None:
        notes.append(
            Note(
                NoteKind.ASK,
                NoteReason.CARD_UNKNOWN,
                "Which card? Shares become bytes on it, and no slot gets a smaller one.",
                "spec.gpus.card",
            )
        )
    if slots > MAX_SLOTS:
        raise ImportProblem(f"the file uses {slots} GPUs in one pipeline; {MAX_SLOTS} are possible")


def validated(spec: Mapping[str, Any]) -> OmniModelSpec:
    """The spec as a model, any id standing for one that must be asked. What is wrong with it came from the file."""
    names = [stage["name"] for stage in spec.get("stages", ())]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ImportProblem(f"gives no valid OmniModel: two stages would be named {twice}")
    try:
        return OmniModelSpec.model_validate({**spec, "model": {"id": "unknown", **spec["model"]}})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ImportProblem(f"gives no valid OmniModel: {place}: {first['msg']}") from None
