"""Slots and shares for a model on given cards: the fewest GPUs, or the talker alone for the fastest first sound.

For the OmniModels of a file, for a known model by its hub id, or for a model's folder. Without --card every card of the
catalogue is tried.

exit code: 0 found, 1 nothing fits or the model's size is not known, 2 bad input
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from omni_operator.api.names import API_VERSION, KIND
from omni_operator.catalogue import Card, cards, layouts_for
from omni_operator.cli import targets as targeting
from omni_operator.cli.judge import smallest_card
from omni_operator.cli.paint import BAD, BOLD, DIM, Canvas, Line, Span, canvas_for, wrapped
from omni_operator.cli.picture_text import slot_lines
from omni_operator.cli.plan import alike, span_of
from omni_operator.cli.targets import Target
from omni_operator.planning.estimate import Workload
from omni_operator.planning.pictures import owners_of, pictures
from omni_operator.planning.solve import MAX_GPUS, Goal, Solution, solve_any

WORDS = {Goal.FEWEST_GPUS: "the fewest GPUs", Goal.FIRST_SOUND: "the fastest first sound"}
GOALS = {"fewest-gpus": Goal.FEWEST_GPUS, "first-sound": Goal.FIRST_SOUND}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    targeting.arguments(parser)
    parser.add_argument("--gpus", type=targeting.whole, default=MAX_GPUS, help=f"at most so many ({MAX_GPUS})")
    parser.add_argument("--goal", choices=GOALS, default="fewest-gpus", help="what to be good at (fewest-gpus)")
    parser.add_argument("-o", "--output", choices=("text", "yaml"), default="text", help="yaml: the OmniModel")


def run(arguments: argparse.Namespace) -> int:
    """Prints the solutions. Raises BadInput."""
    workload = Workload(arguments.context, arguments.requests)
    named = [card for name in arguments.card if (card := smallest_card([name])) is not None]
    candidates: list[Card] = named or list(cards().values())
    found = targeting.targets(arguments, ())
    canvas = canvas_for(sys.stdout)
    solved = True
    for target in found:
        goal = GOALS[arguments.goal]
        solution = solve_any([target.layout, *target.others], target.size, candidates, arguments.gpus, goal, workload)
        if not isinstance(solution, Solution):
            words: Line = [Span(f"{target.name}: ", BAD), Span(str(solution.problem))]
            sys.stderr.write(canvas_for(sys.stderr).draw(wrapped(words, canvas.columns, 2)))
            solved = False
        elif arguments.output == "yaml":
            import yaml

            sys.stdout.write("---\n" + yaml.safe_dump(manifest(target, solution), sort_keys=False, width=120))
        else:
            sys.stdout.write(canvas.draw(lines(target, solution, canvas)))
    return 0 if solved else 1


def lines(target: Target, solution: Solution, canvas: Canvas) -> list[Line]:
    """One solution for the terminal."""
    card = solution.layout.card
    gpus = f"{solution.gpus} × {card.name if card else '?'}"
    what = f"  {solution.layout.variant}, {gpus}, for {WORDS[solution.goal]}"
    result: list[Line] = [[Span(target.name or target.model, BOLD), Span(what, DIM)]]
    notes = {placement.stage: placement.reason for placement in solution.placements}
    drawn = pictures(solution.layout)
    for slots, picture in alike(drawn):
        result += [[Span("")], *slot_lines(picture, span_of(slots), canvas, card, notes, owners_of(drawn))]
    result.append([Span("")])
    for reason in solution.reasons:
        result += wrapped([Span("  "), Span(reason)], canvas.columns, 2)
    for tried in layouts_for(target.model, card.name if card else None):
        shares = ", ".join(f"{stage.name} {stage.budget}" for stage in tried.stages if stage.budget is not None)
        text = f"  Others run it on {tried.gpus} × {tried.card} as {tried.variant}: {shares} ({tried.source})."
        result += wrapped([Span(text, DIM)], canvas.columns, 2)
    return result


def manifest(target: Target, solution: Solution) -> dict[str, Any]:
    """The OmniModel that says so."""
    card = solution.layout.card
    assert card is not None
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": target.name},
        "spec": {
            "model": {
                "id": target.model,
                "pipeline": solution.layout.pipeline,
                "variant": solution.layout.variant,
                "cache": {"emptyDir": {}},
            },
            "gpus": {"card": card.name} if card.product else {"memory": card.name},
            "stages": [
                {"name": placement.stage, "gpus": list(placement.slots), "gpuMemory": str(placement.budget)}
                for placement in solution.placements
            ],
        },
    }
