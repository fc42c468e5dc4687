"""The two ways in: a file, or its text. What comes out is an `Imported`, or an `ImportProblem`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_operator.catalogue import Card, cards, cards_without_memory
from omni_operator.importing import (
    from_sglang,
    from_vllm,
    sglang,
    sglang_overrides,
    sglang_stages_list,
    sglang_stages_map,
    vllm_deploy,
    vllm_stage_args,
    vllm_stage_overrides,
)
from omni_operator.importing.detect import detect
from omni_operator.importing.document import decode, parse
from omni_operator.importing.files import Read, no_files, read_file, reader
from omni_operator.importing.found import Form, Found
from omni_operator.importing.from_sglang import Wanted
from omni_operator.importing.notes import ImportProblem
from omni_operator.importing.placing import MAX_COPIES
from omni_operator.importing.result import Imported


def import_file(
    path: str | Path,
    *,
    root: str | Path | None = None,
    card: Card | str | None = None,
    model: str | None = None,
    pipeline: str | None = None,
    variant: str | None = None,
    name: str | None = None,
    copies: int = 1,
    stage_overrides: str | None = None,
) -> Imported:
    """Imports one file.

    `root`: the folder that may be read, for base_config; by default the file's own. `card`, `model` (hub id or path),
    `pipeline` and `variant` (of the catalogue) and `name` (of the OmniModel) answer what a file leaves open. `copies`:
    how many copies of the whole pipeline a launcher starts on the same GPUs. `stage_overrides`: the JSON of vLLM-Omni's
    option of that name, applied to a deploy file. Raises ImportProblem.
    """
    file = Path(path)
    folder = Path(root) if root is not None else file.parent
    try:
        inside = root is None or file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise ImportProblem(f"cannot be read: {error}", str(path)) from None
    if not inside:
        raise ImportProblem(f"is outside of the folder {folder}; only files inside of it are read", str(path))
    shown = file.name if root is None else str(file.resolve().relative_to(folder.resolve()))
    data = read_file(file, str(path))
    wanted = _wanted(card, model, pipeline, variant, name, copies)
    return _located(data, wanted, shown, str(path), reader(folder), stage_overrides)


def import_text(
    content: str | bytes,
    *,
    source: str = "",
    card: Card | str | None = None,
    model: str | None = None,
    pipeline: str | None = None,
    variant: str | None = None,
    name: str | None = None,
    copies: int = 1,
    stage_overrides: str | None = None,
) -> Imported:
    """Imports the text of a file; no other file is read. Otherwise as `import_file`."""
    text = decode(content, source) if isinstance(content, bytes) else content
    wanted = _wanted(card, model, pipeline, variant, name, copies)
    return _located(parse(text, source), wanted, source, source, no_files, stage_overrides)


def _wanted(
    card: Card | str | None, model: str | None, pipeline: str | None, variant: str | None, name: str | None, copies: int
) -> Wanted:
    if isinstance(card, str):
        if card in cards_without_memory():
            raise ImportProblem(f"a {card} reports no memory size; give it as an amount, such as 110Gi")
        if card not in cards():
            raise ImportProblem(f"the catalogue has no card {card!r}; it has {', '.join(cards())}")
        card = cards()[card]
    if not 1 <= copies <= MAX_COPIES:
        raise ImportProblem(f"copies must be from 1 to {MAX_COPIES}, not {copies}")
    return Wanted(card, model, pipeline, variant, name, copies)


def _located(
    data: dict[str, Any], wanted: Wanted, file_name: str, shown: str, follow: Read, overrides: str | None
) -> Imported:
    """Adds the file to problems that do not name one."""
    try:
        return _import(data, wanted, file_name, follow, overrides)
    except ImportProblem as problem:
        raise ImportProblem(problem.message, problem.source or shown, problem.line, problem.column) from None


def _import(data: dict[str, Any], wanted: Wanted, file_name: str, follow: Read, overrides: str | None) -> Imported:
    form = detect(data)
    if form in (Form.VLLM_DEPLOY, Form.VLLM_PIPELINE):
        changes = {} if overrides is None else parse(overrides, "--stage-overrides")
        return from_vllm.assemble(vllm_deploy.read(data, form, file_name, follow, changes), wanted, file_name)
    if overrides is not None:
        raise ImportProblem(f"--stage-overrides change a vLLM-Omni deploy file; this has the form {form.value}")
    if form is Form.VLLM_STAGE_ARGS:
        return from_vllm.assemble({vllm_deploy.DEFAULT_PLATFORM: vllm_stage_args.read(data)}, wanted, file_name)
    if form is Form.VLLM_STAGE_OVERRIDES:
        return from_vllm.assemble({vllm_deploy.DEFAULT_PLATFORM: vllm_stage_overrides.read(data)}, wanted, file_name)
    return from_sglang.assemble(_read_sglang(data, form), wanted, file_name)


def _read_sglang(data: dict[str, Any], form: Form) -> Found:
    if form is Form.SGLANG_STAGES_MAP:
        return sglang_stages_map.read(data)
    if form is Form.SGLANG_STAGES_LIST:
        return sglang_stages_list.read(data)
    if form is Form.SGLANG_CLASS:
        return sglang.found(form, data, ())
    return sglang_overrides.read(data, form)
