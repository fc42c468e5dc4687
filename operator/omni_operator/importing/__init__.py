"""Files of sglang-omni and vLLM-Omni → an OmniModel, with what could not be carried over; and back.

`import_file` and `import_text` read every form that was published; `export` writes the one that sglang-omni 0.1.9
reads.
"""

from omni_operator.importing.export import Exported, export
from omni_operator.importing.found import Form
from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.importing.read import import_file, import_text
from omni_operator.importing.result import Imported, SlotSum, slot_sums

__all__ = [
    "Exported",
    "Form",
    "ImportProblem",
    "Imported",
    "Note",
    "NoteKind",
    "NoteReason",
    "SlotSum",
    "export",
    "import_file",
    "import_text",
    "slot_sums",
]
