"""What an import says beside its result: problems that end it, and notes that go with it.

Every note has a kind, the field that it is about, and a sentence for people. Notes of kind ASK are questions: until
they are answered the manifest is not complete, or its verdict would be a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ImportProblem(ValueError):
    """The input cannot be imported. Says where (file, line and column where they are known) and what to do."""

    def __init__(self, message: str, source: str = "", line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.source = source
        self.line = line
        self.column = column

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.source, self.line, self.column) if part not in ("", None))
        return f"{place}: {self.message}" if place else self.message


class NoteKind(StrEnum):
    """What a note means for the reader."""

    REFUSED_UPSTREAM = "refused-upstream"
    """A version of the engine refuses the file as it stands."""
    NOT_CARRIED = "not-carried-over"
    """Said in the file, but has no place in an OmniModel."""
    ASK = "must-be-asked"
    """Only the user knows it."""
    UNIT = "unit-changed"
    """The same thing, written in another unit or numbering."""
    ASSUMPTION = "assumption"
    """Not in the file; what was taken instead."""
    WARNING = "warning"
    """Carried over, but does not do what it seems to."""


class NoteReason(StrEnum):
    """One word for programs."""

    OLD_FORM = "OldForm"
    UNKNOWN_FIELD = "UnknownField"
    NOT_SUPPORTED = "NotSupported"
    ENGINE_CHANGES = "EngineChanges"
    PIPELINE_UNKNOWN = "PipelineUnknown"
    MODEL_UNKNOWN = "ModelUnknown"
    CARD_UNKNOWN = "CardUnknown"
    BUDGET_UNKNOWN = "BudgetUnknown"
    BUDGET_MISSING = "BudgetMissing"
    DEVICE_COUNT_MISMATCH = "DeviceCountMismatch"
    DEVICES_MISSING = "DevicesMissing"
    DEVICES_RENUMBERED = "DevicesRenumbered"
    STAGE_COPIES = "StageCopies"
    STAGE_UNKNOWN = "StageUnknown"
    STAGE_MISSING = "StageMissing"
    CAP_MISSING = "CapMissing"
    SHARE_NOT_ENFORCED = "ShareNotEnforced"
    SHARED_MEMORY = "SharedMemory"
    WEIGHT_SHARE = "WeightShare"
    UNIT = "Unit"
    CACHE = "Cache"
    NAME = "Name"
    DEFAULTS = "Defaults"
    PREFILL_DECODE_SPLIT = "PrefillDecodeSplit"


@dataclass(frozen=True)
class Note:
    """One remark. `field` is a path in the file read or, for ASK, the field of the OmniModel to set."""

    kind: NoteKind
    reason: NoteReason
    message: str
    field: str = ""
    version: str = ""
    """The engine version that a REFUSED_UPSTREAM note is about."""

    def __str__(self) -> str:
        return f"[{self.kind}] {self.field + ': ' if self.field else ''}{self.message}"
