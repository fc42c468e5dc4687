"""A file of sglang-omni or vLLM-Omni as an OmniModel.

The OmniModel goes to standard output; the form that was found, what could not be carried over and what must be asked
go to standard error.

exit code: 0 complete, 1 something must be asked before it can be used, 2 bad input
"""

from __future__ import annotations

import argparse
import sys

import yaml

from omni_operator.cli.documents import BadInput, Place
from omni_operator.cli.judge import smallest_card
from omni_operator.cli.paint import DIM, Line, Span, canvas_for, notes
from omni_operator.cli.sources import STDIN, text_of


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("file", metavar="FILE", help="file, or - for standard input")
    parser.add_argument("--root", help="folder that base_config may read from (the file's own)")
    parser.add_argument("--card", help="card or memory that shares are planned on, such as h200 or 81559Mi")
    parser.add_argument("--model", help="hub id or path, where the file names none")
    parser.add_argument("--pipeline", help="pipeline of the catalogue, where it is not clear")
    parser.add_argument("--variant", help="variant of the pipeline, where it is not clear")
    parser.add_argument("--name", help="name of the OmniModel")
    parser.add_argument("--copies", type=int, default=1, help="copies of the pipeline on the same GPUs (1)")
    parser.add_argument("--stage-overrides", metavar="JSON", help="vLLM-Omni's option of that name")


def run(arguments: argparse.Namespace) -> int:
    """Prints the OmniModel. Raises BadInput."""
    from omni_operator.importing import ImportProblem, import_file, import_text

    wanted = {
        "card": None if arguments.card is None else smallest_card([arguments.card]),
        "model": arguments.model,
        "pipeline": arguments.pipeline,
        "variant": arguments.variant,
        "name": arguments.name,
        "copies": arguments.copies,
        "stage_overrides": arguments.stage_overrides,
    }
    try:
        if arguments.file == STDIN:
            imported = import_text(text_of(STDIN), source="standard input", **wanted)
        else:
            imported = import_file(arguments.file, root=arguments.root, **wanted)
    except ImportProblem as problem:
        place = Place(problem.source or arguments.file, problem.line, problem.column)
        raise BadInput(problem.message, place) from None
    sys.stdout.write(yaml.safe_dump(dict(imported.manifest), sort_keys=False, allow_unicode=True, width=120))
    canvas = canvas_for(sys.stderr)
    form: Line = [Span(f"form: {imported.form.value}", DIM)]
    sys.stderr.write(canvas.draw([form, *notes(imported.notes, canvas)]))
    return 1 if imported.questions else 0
