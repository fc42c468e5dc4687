"""Files and standard input → judgements. Upstream's own files are imported on the way."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omni_operator.api.reasons import Reason
from omni_operator.catalogue import model_sizes
from omni_operator.cli.documents import MAX_BYTES, BadInput, Document, Place, decode, read
from omni_operator.cli.judge import Judgement, Options, is_manifest, is_omnimodel, judge, judged_layout, smallest_card
from omni_operator.planning.budget import check, ordered
from omni_operator.planning.layout import Problem, Severity

if TYPE_CHECKING:
    from omni_operator.importing import Imported

STDIN = "-"
_OPEN: Mapping[str, Reason] = {
    "DeviceCountMismatch": Reason.DEVICE_COUNT_MISMATCH,
    "DevicesMissing": Reason.DEVICE_COUNT_MISMATCH,
    "PipelineUnknown": Reason.UNKNOWN_PIPELINE,
}
"""By a note's reason. As text, since reading an OmniModel does not load the importers."""


def judgements(names: Iterable[str], options: Options) -> list[Judgement]:
    """Of all OmniModels in all files, in order. Raises BadInput; a file without any is bad input too."""
    return [judgement for name in names for judgement in _of_file(name, options)]


def text_of(name: str) -> str:
    """The text of a file, or of standard input for `-`. Raises BadInput."""
    if name == STDIN:
        return decode(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    try:
        with Path(name).open("rb") as file:
            return decode(file.read(MAX_BYTES + 1), name)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", Place(name)) from None
    except ValueError as error:
        raise BadInput(f"cannot be read: {error}", Place(repr(name))) from None


def _of_file(name: str, options: Options) -> Iterator[Judgement]:
    source = "standard input" if name == STDIN else name
    text = text_of(name)
    documents = read(text, source)
    if not documents:
        raise BadInput("holds no document", Place(source))
    if len(documents) == 1 and not is_manifest(documents[0].data):
        yield _imported(name, source, text, documents[0], options)
        return
    found = [document for document in documents if is_omnimodel(document.data)]
    if not found:
        kinds = ", ".join(_kind(document) for document in documents[:5])
        raise BadInput(f"holds no OmniModel, but {kinds}", documents[0].place(()))
    skipped = [_kind(document) for document in documents if not is_omnimodel(document.data)]
    for i, document in enumerate(found):
        judged = judge(document, options)
        yield replace(judged, notes=(f"Not planned: {', '.join(skipped)}.",)) if skipped and i == 0 else judged


def _imported(name: str, source: str, text: str, document: Document, options: Options) -> Judgement:
    """A pipeline file of sglang-omni or vLLM-Omni."""
    from omni_operator.importing import ImportProblem, import_file, import_text

    if options.edits or options.held:
        raise BadInput("is not an OmniModel; --set and --held need one: import it first", document.place(()))
    card = smallest_card(options.cards)
    try:
        imported = import_text(text, source=source, card=card) if name == STDIN else import_file(name, card=card)
    except ImportProblem as problem:
        raise BadInput(problem.message, Place(problem.source or source, problem.line, problem.column)) from None
    model = str(imported.manifest["spec"].get("model", {}).get("id", ""))
    title = str(imported.manifest["metadata"]["name"])
    layout = replace(imported.layout, size=imported.layout.size or model_sizes().get(model.lower()))
    problems, notes = _open_questions(imported)
    judged = judged_layout(title, source, layout, ordered((*check(layout), *problems), options.strict), model)
    notes = (f"Imported: {imported.form.value}.", *notes)
    return replace(judged, notes=notes, imported=True)


def _open_questions(imported: Imported) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Questions without whose answer nobody knows where stages are: those leave the verdict open. The rest is notes."""
    problems: list[Problem] = []
    notes: list[str] = []
    for note in imported.notes:
        reason = _OPEN.get(note.reason) if note.kind == "must-be-asked" else None
        if reason is None or (reason is Reason.UNKNOWN_PIPELINE and imported.layout.slots):
            notes.append(str(note))
        else:
            problems.append(Problem(reason, note.message, note.field or "spec", Severity.QUESTION))
    return tuple(problems), tuple(notes)


def _kind(document: Document) -> str:
    data = document.data
    if not is_manifest(data):
        return "a document that is no manifest"
    meta = data.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return f"{str(data['kind'])[:60]} {str(name or '')[:60]}".strip()
