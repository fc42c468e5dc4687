"""What `estimate` and `solve` work on: the OmniModels of a file, or a model by its hub id."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omni_operator.catalogue import known_models, model_sizes
from omni_operator.cli.documents import BadInput, Document, Place
from omni_operator.cli.judge import Options, judge
from omni_operator.cli.sources import STDIN, judgements
from omni_operator.planning.layout import Layout

if TYPE_CHECKING:
    from omni_operator.catalogue import ModelSize


@dataclass(frozen=True)
class Target:
    """A layout, and the size of its model where that is known."""

    name: str
    model: str
    layout: Layout
    size: ModelSize | None


def arguments(parser: argparse.ArgumentParser) -> None:
    """The target, and the options that change it."""
    parser.add_argument("target", metavar="FILE|MODEL", help="file with OmniModels, -, or a hub id that is known")
    parser.add_argument("--variant", help="variant of the pipeline, for a hub id")
    parser.add_argument("--card", action="append", default=[], help="card or memory, such as h200 or 81559Mi")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change the spec first")
    parser.add_argument("--context", type=whole, help="tokens of the longest request, prompt and answer (the model's)")
    parser.add_argument("--requests", type=whole, default=1, help="requests of that length at once (1)")


def whole(text: str) -> int:
    """A whole number above 0, for argparse."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def targets(name: str, variant: str | None, cards: tuple[str, ...], edits: tuple[str, ...]) -> list[Target]:
    """All layouts of a file, or the catalogue's of a model. Raises BadInput."""
    options = Options(cards, edits)
    if name == STDIN or Path(name).exists():
        judged = judgements([name], options)
    else:
        judged = [judge(_document(name, variant), options)]
    found = []
    for judgement in judged:
        if judgement.layout is None:
            raise BadInput(" ".join(str(problem) for problem in judgement.problems), Place(judgement.source))
        size = model_sizes().get(judgement.model.lower())
        found.append(Target(judgement.name, judgement.model, judgement.layout, size))
    return found


def _document(model: str, variant: str | None) -> Document:
    """An OmniModel that says nothing but which model."""
    if model.lower() not in known_models():
        listed = ", ".join(known.id for known in known_models().values())
        raise BadInput(f"is neither a file nor a known model. Known: {listed}", Place(model))
    spec = {"id": model, "cache": {"emptyDir": {}}, **({"variant": variant} if variant else {})}
    data = {
        "apiVersion": "omnimodel.io/v1alpha1",
        "kind": "OmniModel",
        "metadata": {"name": model.rpartition("/")[2].lower()[:40]},
        "spec": {"model": spec},
    }
    return Document(data, {(): Place(model)})
