"""The commands by name. Only the module of the one that is run is imported, so that a start is short.

Parsed with argparse on purpose: typer 0.29 loads pydantic for every option and rich for its help, and that alone takes
longer than a plan may.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast


@dataclass(frozen=True)
class Command:
    """A command and the module behind it, which is a `CommandModule`."""

    name: str
    help: str
    module: str


class CommandModule(Protocol):
    """What a command's module has."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Runs it; the exit code comes back. Raises BadInput."""


COMMANDS = (
    Command("plan", "will it fit, why not, and what would", "omni_operator.cli.plan"),
    Command("estimate", "what a model needs, stage by stage, and which cards can", "omni_operator.cli.estimate"),
    Command("solve", "slots and shares for a model on given cards", "omni_operator.cli.solve"),
    Command("import", "a file of sglang-omni or vLLM-Omni as an OmniModel", "omni_operator.cli.import_"),
    Command("export", "an OmniModel as a file of sglang-omni", "omni_operator.cli.export"),
    Command("render", "the manifests that the operator would make", "omni_operator.cli.render"),
    Command("status", "a live picture of a model in the cluster", "omni_operator.cli.status"),
    Command("explain", "why it is as it is, and what to change", "omni_operator.cli.explain"),
    Command("rollout", "status, history and undo of a model's declaration", "omni_operator.cli.rollout"),
    Command("logs", "the log of a stage", "omni_operator.cli.logs"),
)


def run(arguments: Sequence[str], commands: Sequence[Command] = COMMANDS) -> int:
    """Runs the command that the arguments name. Usage errors end the process with code 2, as argparse does."""
    chosen = next((command for command in commands if arguments[:1] == [command.name]), None)
    if chosen is None:
        return _no_command(arguments, commands)
    module = cast(CommandModule, importlib.import_module(chosen.module))
    parser = argparse.ArgumentParser(f"kubectl omni {chosen.name}", description=module.__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.arguments(parser)
    return module.run(parser.parse_intermixed_args(arguments[1:]))


def _no_command(arguments: Sequence[str], commands: Sequence[Command]) -> int:
    """Help, the version, or what is wrong with the first word."""
    parser = argparse.ArgumentParser(
        "kubectl omni", description="Omni-modal models on shared GPUs.", formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--version", action="store_true", help="show the version")
    rows = "\n".join(f"{command.name:10} {command.help}" for command in commands)
    names = [command.name for command in commands]
    parser.add_argument("command", nargs="?", choices=names, metavar="COMMAND", help=rows)
    if parser.parse_args(arguments).version:
        from importlib.metadata import version

        print(f"kubectl-omni {version('omni-operator')}")
        return 0
    parser.print_help()
    return 0 if not arguments else 2
