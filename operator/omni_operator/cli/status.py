"""A live picture of an OmniModel: its cards to scale, declared beside measured memory, stages by state, what is waited
for and why. Without a name, a table of all.

exit code: 0 ready, 1 not ready, 2 not found, bad input, or no answer
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from omni_operator.cli import live
from omni_operator.cli.paint import Canvas, Line, canvas_for

if TYPE_CHECKING:
    from omni_operator.cli.live_model import LiveModel
    from omni_operator.cli.live_watch import Last

T = TypeVar("T")

NOT_READY = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the OmniModel (all)")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="without a name: those of all namespaces")
    parser.add_argument("-r", "--replica", type=int, help="only the cards and stages of this replica")
    parser.add_argument("-w", "--watch", action="store_true", help="look again every 2 s, until Ctrl-C")
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="form (text)")
    live.arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints it. Raises BadInput."""
    if arguments.name is None:
        return _shown(arguments, _all(arguments))
    live.check_name(arguments.name, "omnimodel")
    return _shown(arguments, _one(arguments))


@dataclass(frozen=True)
class View(Generic[T]):
    """What is looked at, and every form that it can be shown in."""

    look: Callable[[live.Cluster], Awaitable[T]]
    draw: Callable[[T, datetime, Canvas], list[Line]]
    report: Callable[[T], dict[str, Any]]
    changes: Callable[[T | None, T], Sequence[str]]
    models: Callable[[T], Sequence[LiveModel]]


def _one(arguments: argparse.Namespace) -> View[LiveModel]:
    from omni_operator.cli.live_read import read_live
    from omni_operator.cli.live_report import report
    from omni_operator.cli.live_text import status_lines
    from omni_operator.cli.live_watch import changes

    return View(
        look=lambda cluster: read_live(cluster, arguments.name, arguments.replica),
        draw=lambda model, now, canvas: status_lines(model, now, canvas, arguments.replica),
        report=report,
        changes=changes,
        models=lambda model: [model],
    )


def _all(arguments: argparse.Namespace) -> View[list[LiveModel]]:
    from omni_operator.cli.live_read import read_all
    from omni_operator.cli.live_report import reports
    from omni_operator.cli.live_text import table_lines
    from omni_operator.cli.live_watch import changes_of_all

    return View(
        look=lambda cluster: read_all(cluster, arguments.all_namespaces),
        draw=lambda models, now, canvas: table_lines(models, now, canvas, arguments.all_namespaces),
        report=reports,
        changes=changes_of_all,
        models=lambda models: models,
    )


def _shown(arguments: argparse.Namespace, view: View[T]) -> int:
    from omni_operator.cli.live_watch import Last

    last: Last[T] = Last()

    async def work(cluster: live.Cluster) -> None:
        if arguments.watch:
            await _watch(arguments, view, cluster, last)
        else:
            last.seen = await view.look(cluster)
            sys.stdout.write(_whole(arguments, view, last.seen, cluster))

    try:
        live.run_in_cluster(arguments, work)
    except KeyboardInterrupt:  # The ordinary end of a watch.
        if not arguments.watch or last.seen is None:
            raise
    return 0 if last.seen is not None and all(model.ready for model in view.models(last.seen)) else NOT_READY


async def _watch(arguments: argparse.Namespace, view: View[T], cluster: live.Cluster, last: Last[T]) -> None:
    from omni_operator.cli.live_watch import print_changes, redraw

    def look() -> Awaitable[T]:
        return view.look(cluster)

    def documents(before: T | None, now: T) -> list[str]:
        data = view.report(now)
        if before is not None and view.report(before) == data:
            return []
        return [json.dumps(data, ensure_ascii=False) if arguments.output == "json" else f"---\n{_yaml(data)}"]

    if arguments.output != "text":
        await print_changes(look, documents, last, stamped=False)
    elif sys.stdout.isatty():
        await redraw(look, view.draw, last)
    else:
        await print_changes(look, view.changes, last, stamped=True)


def _whole(arguments: argparse.Namespace, view: View[T], seen: T, cluster: live.Cluster) -> str:
    if arguments.output == "json":
        return json.dumps(view.report(seen), indent=2, ensure_ascii=False) + "\n"
    if arguments.output == "yaml":
        return _yaml(view.report(seen))
    if not view.models(seen):
        sys.stderr.write(f"No OmniModel in {'the cluster' if arguments.all_namespaces else cluster.namespace}.\n")
        return ""
    canvas = canvas_for(sys.stdout)
    return canvas.draw(view.draw(seen, datetime.now(UTC), canvas))


def _yaml(data: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    return text
