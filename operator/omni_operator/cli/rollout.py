"""A model's declaration over time: wait until it is rolled out, look at the specs that were accepted, go back to one.

  kubectl omni rollout status NAME     wait until the spec as it is now serves; say on the way what is waited for
  kubectl omni rollout history NAME    the specs that were accepted, and what each changed
  kubectl omni rollout undo NAME       make the spec the one before, or after a refusal the last accepted one

`undo` writes the spec as you would; the operator itself never does. Where Git holds the spec, go back there instead:
Argo CD and Flux would undo the undo.

exit code: 0 done, or rolled out; 1 refused, failed, or out of time; 2 not found, nothing to go back to, or no answer
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable

from omni_operator.cli import live
from omni_operator.cli.documents import BadInput, Place
from omni_operator.cli.targets import whole

OPTIONS = {"timeout": "status", "revision": "history", "to_revision": "undo", "dry_run": "undo"}
"""By option, the action that has it."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("action", choices=("status", "history", "undo"), help="what to do")
    parser.add_argument("name", metavar="NAME", help="of the OmniModel")
    parser.add_argument("--timeout", metavar="TIME", help="status: wait no longer, such as 10m (for ever)")
    parser.add_argument("--revision", type=whole, metavar="N", help="history: the whole spec of this one")
    parser.add_argument("--to-revision", type=whole, metavar="N", help="undo: back to this one (the one before)")
    parser.add_argument("--dry-run", action="store_true", help="undo: only say what would change; the server checks it")
    live.arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Does it. Raises BadInput."""
    live.check_name(arguments.name, "omnimodel")
    for option, action in OPTIONS.items():
        if getattr(arguments, option) and arguments.action != action:
            flag = f"--{option.replace('_', '-')}"
            raise BadInput(f"is for rollout {action}, not for rollout {arguments.action}", Place(flag))
    return live.run_in_cluster(arguments, _work(arguments))


def _work(arguments: argparse.Namespace) -> Callable[[live.Cluster], Awaitable[int]]:
    from omni_operator.cli import rollout_history, rollout_status

    if arguments.action == "status":
        limit = _seconds(arguments.timeout) if arguments.timeout else None
        return lambda cluster: rollout_status.follow(cluster, arguments.name, limit, live.flags(arguments))
    if arguments.action == "history":
        return lambda cluster: rollout_history.show(cluster, arguments.name, arguments.revision, sys.stdout)
    return lambda cluster: rollout_history.undo(cluster, arguments.name, arguments.to_revision, arguments.dry_run)


def _seconds(text: str) -> float:
    from omni_operator.api.quantities import QuantityError
    from omni_operator.planning.resolve import parse_duration

    try:
        return float(parse_duration(text))
    except QuantityError as error:
        raise BadInput(str(error), Place("--timeout")) from None
