"""An OmniModel as the configuration file that sglang-omni 0.1.9 reads.

The file goes to standard output; what sglang-omni cannot say goes to standard error.

exit code: 0 exported, 1 not accepted, 2 bad input
"""

from __future__ import annotations

import argparse
import sys

from omni_operator.cli.documents import BadInput, Place, read
from omni_operator.cli.judge import Options, checked_spec, is_omnimodel, judge
from omni_operator.cli.paint import canvas_for, notes, say
from omni_operator.cli.schema import view
from omni_operator.cli.sources import STDIN, text_of
from omni_operator.planning.layout import refused


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("file", metavar="FILE", help="file with one OmniModel, or - for standard input")
    parser.add_argument("--card", action="append", default=[], help="card or memory, such as h200 or 81559Mi")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change the spec first")


def run(arguments: argparse.Namespace) -> int:
    """Prints the file. Raises BadInput."""
    from omni_operator.importing import ImportProblem, export

    source = "standard input" if arguments.file == STDIN else arguments.file
    found = [document for document in read(text_of(arguments.file), source) if is_omnimodel(document.data)]
    if len(found) != 1:
        raise BadInput(f"holds {len(found) or 'no'} OmniModels; one is exported at a time", Place(source))
    options = Options(tuple(arguments.card), tuple(arguments.set))
    judged = judge(found[0], options)
    if refused(judged.problems):
        for problem in judged.problems:
            say(f"{found[0].place(())}: {problem.reason}: {problem}")
        return 1
    try:
        exported = export(view(checked_spec(found[0], options)), name=judged.name or None)
    except ImportProblem as problem:
        raise BadInput(problem.message, found[0].place(())) from None
    sys.stdout.write(exported.yaml())
    canvas = canvas_for(sys.stderr)
    sys.stderr.write(canvas.draw(notes(exported.notes, canvas)))
    return 0
