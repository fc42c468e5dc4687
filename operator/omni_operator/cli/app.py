"""The commands and their options. Everything behind them is imported when it is run, so that a start is short."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="kubectl-omni",
    help="Plan omni-modal models on shared GPUs: will it fit, why not, and what would.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Files = Annotated[
    list[str], typer.Argument(metavar="FILE…", help="OmniModels, or files of sglang-omni or vLLM-Omni; - is stdin.")
]
Cards = Annotated[
    list[str] | None,
    typer.Option("--card", help="Plan on this card, a name or a memory such as 81559Mi. Several: on the smallest."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change the spec first, e.g. 'stages[thinker].gpuMemory=80%'."),
]


@app.callback()
def _commands() -> None:
    """Keeps a single command a subcommand."""


@app.command()
def plan(
    files: Files,
    output: Annotated[str, typer.Option("--output", "-o", help="text, wide, json, yaml or svg.")] = "text",
    card: Cards = None,
    set_: Sets = None,
    held: Annotated[
        list[str] | None,
        typer.Option("--held", metavar="SLOT=AMOUNT", help="What others hold of a card, e.g. 0=26Gi."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse whatever has a warning.")] = False,
) -> None:
    """Will it fit, why not, and what would. Exit code 0: accepted, 1: not accepted, 2: bad input."""
    from omni_operator.cli.judge import Options
    from omni_operator.cli.plan import FORMS
    from omni_operator.cli.plan import plan as run

    if output not in FORMS:
        raise typer.BadParameter(f"must be one of {', '.join(FORMS)}", param_hint="--output")
    options = Options(tuple(card or ()), tuple(set_ or ()), tuple(held or ()), strict)
    raise typer.Exit(run(files, options, output))
