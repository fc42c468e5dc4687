"""The log of a stage: the pod of its process is found, and its container's log streamed. `front` is the front.

exit code: 0 shown, 1 the stage has not started, 2 not found, bad input, or no answer
"""

from __future__ import annotations

import argparse
import sys

from omni_operator.cli import live
from omni_operator.cli.targets import whole

NOT_STARTED = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("name", metavar="NAME", help="of the OmniModel")
    parser.add_argument("stage", metavar="STAGE", help="stage, process, or front")
    parser.add_argument("-r", "--replica", type=int, help="index of the pipeline replica (the first)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as the log grows; wait until it starts")
    parser.add_argument("--previous", action="store_true", help="of the container before this one, which ended")
    parser.add_argument("--tail", type=_lines, metavar="N", help="the last lines only (all)")
    live.arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Streams it. Raises BadInput."""
    from omni_operator.cli.live_logs import Wanted, stream

    live.check_name(arguments.name, "omnimodel")
    wanted = Wanted(
        arguments.name, arguments.stage, arguments.replica, arguments.follow, arguments.previous, arguments.tail
    )

    async def work(cluster: live.Cluster) -> str:
        return await stream(cluster, wanted, sys.stdout.buffer)

    why = live.run_in_cluster(arguments, work)
    if why:
        sys.stderr.write(f"{why}\n")
    return NOT_STARTED if why else 0


def _lines(text: str) -> int:
    return 0 if text == "0" else whole(text)
