"""Files and standard input → judgements. Upstream's own files are imported on the way."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from omni_operator.catalogue import model_sizes
from omni_operator.cli.documents import MAX_BYTES, BadInput, Document, Place, decode, read
from omni_operator.cli.judge import Judgement, Options, is_manifest, is_omnimodel, judge, judged_layout, smallest_card
from omni_operator.planning.budget import check

STDIN = "-"


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
    judged = judged_layout(title, source, layout, check(layout, strict=options.strict), model)
    notes = (f"Imported: {imported.form.value}.", *(str(note) for note in imported.notes))
    return replace(judged, notes=notes, imported=True)


def _kind(document: Document) -> str:
    data = document.data
    if not is_manifest(data):
        return "a document that is no manifest"
    meta = data.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return f"{str(data['kind'])[:60]} {str(name or '')[:60]}".strip()
