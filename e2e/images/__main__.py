"""The command line: `python -m e2e.images build|load|export|list|prune`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import DEFAULT_NAME, ClusterError, Instance, Progress, refuse_external, running
from e2e.images.build import RECIPES, Builder, Recipe
from e2e.images.load import load


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    builder = Builder(progress=Progress(quiet=parsed.quiet))
    try:
        run(parsed, builder)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):  # whoever read our output has seen enough
        return 130
    return 0


def run(parsed: argparse.Namespace, builder: Builder) -> None:
    if parsed.command == "list":
        for tag, descriptor in builder.layout.manifests().items():
            size = sum(builder.layout.blob(each).stat().st_size for each in builder.layout.digests(tag))
            print(f"{RECIPES[tag].name}  {descriptor['digest']}  {size / 1e6:.0f} MB")
        return
    if parsed.command == "prune":
        builder.prune()
        return
    recipes = chosen(parsed.images)
    for recipe in recipes:
        print(f"{recipe.name}  {builder.build(recipe)}")
    if parsed.command == "load":
        refuse_external("load images into its nodes")
        cluster = running(Instance(parsed.name))
        if not cluster:
            raise ClusterError(
                f"the cluster {parsed.name} is not running", f"python -m e2e.cluster up --name {parsed.name}"
            )
        load(cluster, builder.layout, recipes, Progress(quiet=parsed.quiet))
    if parsed.command == "export":
        for recipe in recipes:
            with (parsed.folder / f"omni-{recipe.tag}.tar").open("wb") as file:
                builder.layout.write_archive(recipe.tag, recipe.name, (), file)


def chosen(tags: Sequence[str]) -> list[Recipe]:
    """The recipes of these tags; `all`, or none at all, means every one that is not built on request only."""
    every = not tags or "all" in tags
    return [recipe for tag, recipe in RECIPES.items() if tag in tags or (every and not recipe.on_request)]


def known(tag: str) -> str:
    """A type for argparse, whose `choices` refuse an empty list of optional words."""
    if tag not in (*RECIPES, "all"):
        raise argparse.ArgumentTypeError(f"{tag} is none of {', '.join([*RECIPES, 'all'])}")
    return tag


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.images", description=__doc__)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    texts = {
        "build": "build images whose content changed",
        "load": "build them, then put them into a running cluster of ours",
        "export": "build them, then write each as an OCI archive, for `docker load` or a registry",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("images", nargs="*", type=known, metavar="IMAGE", help=", ".join([*RECIPES, "all"]))
        if name == "load":
            command.add_argument("--name", default=DEFAULT_NAME, help="which cluster")
        if name == "export":
            command.add_argument("--folder", type=Path, default=Path("."), help="where the archives go")
    commands.add_parser("list", help="show what is built")
    commands.add_parser("prune", help="free the disk of earlier builds' layers; the next build starts from nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
