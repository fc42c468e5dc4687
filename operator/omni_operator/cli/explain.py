"""Why an OmniModel is as it is: the reasons in order, conditions, then stages, then what to change. Where the
declaration is refused, the operator's own rules are run on the spec as it is stored, and say what would fit.

exit code: 0 ready, 1 not ready, 2 not found, bad input, or no answer
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from omni_operator.cli import live
from omni_operator.cli.paint import canvas_for

NOT_READY = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("name", metavar="NAME", help="of the OmniModel")
    live.arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the explanation. Raises BadInput."""
    from omni_operator.cli.live_explain import explanation
    from omni_operator.cli.live_model import LiveModel
    from omni_operator.cli.live_read import read_live

    live.check_name(arguments.name, "omnimodel")

    async def work(cluster: live.Cluster) -> LiveModel:
        return await read_live(cluster, arguments.name)

    model = live.run_in_cluster(arguments, work)
    canvas = canvas_for(sys.stdout)
    sys.stdout.write(canvas.draw(explanation(model, datetime.now(UTC), canvas, live.flags(arguments))))
    return 0 if model.ready else NOT_READY
