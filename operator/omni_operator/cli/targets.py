"""What `estimate` and `solve` work on: the OmniModels of a file, a model by its hub id, or a model's own folder."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_operator.catalogue import known_models, model_sizes, pipelines
from omni_operator.cli.documents import BadInput, Document, Place
from omni_operator.cli.judge import Judgement, Options, judge
from omni_operator.cli.sources import STDIN, judgements
from omni_operator.planning.layout import Layout, Stage
from omni_operator.planning.rules.wording import closest

if TYPE_CHECKING:
    from omni_operator.catalogue import ModelSize
    from omni_operator.catalogue.checkpoint import Checkpoint


@dataclass(frozen=True)
class Target:
    """A layout, and the size of its model where that is known."""

    name: str
    model: str
    layout: Layout
    size: ModelSize | None
    others: tuple[Layout, ...] = ()
    """Layouts of other variants with the same stages, where none was asked for."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The target, and the options that change it."""
    known = "file with OmniModels, -, a hub id that is known, or a folder with config.json and its weights"
    parser.add_argument("target", metavar="FILE|MODEL|FOLDER", help=known)
    parser.add_argument("--folder", help="the model's folder, to read its size from instead of the catalogue")
    parser.add_argument("--pipeline", help="pipeline of the catalogue, for a folder")
    parser.add_argument("--variant", help="variant of the pipeline, for a hub id or a folder")
    parser.add_argument("--card", action="append", default=[], help="card or memory, such as h200 or 81559Mi")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change the spec first")
    parser.add_argument("--context", type=whole, help="tokens of the longest request, prompt and answer (the model's)")
    parser.add_argument("--requests", type=whole, default=1, help="requests of that length at once (1)")


def whole(text: str) -> int:
    """A whole number above 0, for argparse."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def targets(arguments: argparse.Namespace, cards: tuple[str, ...]) -> list[Target]:
    """All layouts of a file, the catalogue's of a model, or that of a folder. Raises BadInput."""
    name, options = arguments.target, Options(cards, tuple(arguments.set))
    if name != STDIN and Path(name).is_dir():
        return [_of_folder(name, arguments.pipeline, arguments.variant, options)]
    if name == STDIN or Path(name).exists():
        judged = judgements([name], options)
    else:
        judged = [judge(_document(name, arguments.variant), options)]
    others = () if arguments.variant or name == STDIN or Path(name).exists() else _others(judged[0], options)
    found = []
    for judgement in judged:
        if judgement.layout is None:
            raise BadInput(" ".join(str(problem) for problem in judgement.problems), Place(judgement.source))
        if arguments.folder is not None:
            size: ModelSize | None = _checkpoint(arguments.folder, judgement.layout.pipeline).size
        else:
            size = model_sizes().get(judgement.model.lower())
        found.append(Target(judgement.name, judgement.model, judgement.layout, size, others))
    return found


def _of_folder(folder: str, pipeline: str | None, variant: str | None, options: Options) -> Target:
    """A model that need not be in the catalogue: where no pipeline serves it, as one engine on one GPU."""
    from omni_operator.cli.judge import smallest_card

    found = _checkpoint(folder, pipeline)
    if found.pipeline is None:
        stage = Stage("model", "model", (0,), engine=True)
        size = replace(found.size, stages={"model": tuple(found.size.components)})
        layout = Layout("unknown", "one engine", (stage,), smallest_card(options.cards))
        return Target(found.size.id, found.size.id, layout, size)
    judged = judge(_manifest(found.size.id, found.size.id, variant, found.pipeline), options)
    if judged.layout is None:
        raise BadInput(" ".join(str(problem) for problem in judged.problems), Place(folder))
    return Target(found.size.id, found.size.id, judged.layout, found.size)


def _others(judged: Judgement, options: Options) -> tuple[Layout, ...]:
    if judged.layout is None:
        return ()
    variants = pipelines()[judged.layout.pipeline].variants
    stages = {stage.name for stage in judged.layout.stages}
    names = [name for name, variant in variants.items() if {stage.name for stage in variant.stages} == stages]
    layouts = [judge(_document(judged.model, name), options).layout for name in names if name != judged.layout.variant]
    return tuple(layout for layout in layouts if layout is not None)


def _checkpoint(folder: str, pipeline: str | None) -> Checkpoint:
    from omni_operator.catalogue.checkpoint import read_checkpoint
    from omni_operator.catalogue.folder import CheckpointError

    try:
        return read_checkpoint(folder, pipeline)
    except CheckpointError as error:
        raise BadInput(str(error), Place(folder)) from None


def _document(model: str, variant: str | None) -> Document:
    """An OmniModel that says nothing but which model."""
    if model.lower() not in known_models():
        names = [known.id for known in known_models().values()]
        meant = f"Did you mean {near}? " if (near := closest(model, names)) else ""
        raise BadInput(
            f"is neither a file nor a folder nor a known model. {meant}Known: {', '.join(names)}", Place(model)
        )
    return _manifest(model, model, variant, None)


def _manifest(model: str, place: str, variant: str | None, pipeline: str | None) -> Document:
    spec: dict[str, Any] = {"id": model, "cache": {"emptyDir": {}}}
    spec |= {"pipeline": pipeline} if pipeline else {}
    spec |= {"variant": variant} if variant else {}
    data = {
        "apiVersion": "omnimodel.io/v1alpha1",
        "kind": "OmniModel",
        "metadata": {"name": model.rpartition("/")[2].lower()[:40]},
        "spec": {"model": spec},
    }
    return Document(data, {(): Place(place)})
