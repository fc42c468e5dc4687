"""A document → what the operator would say of it: the same resolving and the same rules, and then what would help.

The command line adds pictures and remedies, and what is known of the model to both; it never changes a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from omni_operator.api.names import API_VERSION, GROUP, KIND
from omni_operator.api.quantities import QuantityError, parse_amount, parse_budget
from omni_operator.api.reasons import Reason
from omni_operator.api.yaml_events import Path
from omni_operator.catalogue import Card, cards, cards_without_memory
from omni_operator.cli.documents import BadInput, Document, Place
from omni_operator.cli.edits import edited
from omni_operator.cli.schema import faults, show, view
from omni_operator.planning.budget import Verdict, check_model, verdict
from omni_operator.planning.changes import Floor, Lighter, Remedy
from omni_operator.planning.estimate_need import Workload, kv_room, stage_need
from omni_operator.planning.layout import Layout, Neighbour, Problem, Stage, refused
from omni_operator.planning.pictures import Split
from omni_operator.planning.remedies import remedies
from omni_operator.planning.resolve import resolve
from omni_operator.planning.rules.wording import closest

_FIELD = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)|\[([^\]]+)\]")


@dataclass(frozen=True)
class Options:
    """What the command line changes."""

    cards: tuple[str, ...] = ()
    """Names or amounts; shares are planned on the smallest, since any of them may be chosen."""
    edits: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    """`slot=amount`: what others hold of a card."""
    strict: bool = False


@dataclass(frozen=True)
class Judgement:
    """What the operator would say of one document."""

    name: str
    source: str
    layout: Layout | None
    problems: tuple[Problem, ...]
    model: str = ""
    """Its hub id or path."""
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()
    split: Split = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    """Of problems' fields, where the document has them."""
    imported: bool = False
    """Whether it was another engine's file."""

    @property
    def verdict(self) -> Verdict:
        """Of the rules alone."""
        return verdict(self.problems)


def judge(document: Document, options: Options) -> Judgement:
    """One OmniModel document. Raises BadInput where it is none, or where the API server would not take it."""
    spec = checked_spec(document, options)
    name = str((document.data.get("metadata") or {}).get("name") or "")
    resolution = resolve(view(spec))
    if resolution.layout is not None:
        held = replace(resolution.layout, neighbours=_neighbours(options.held))
        resolution = replace(resolution, layout=held)
    problems = check_model(name or "omni-model", resolution, strict=options.strict)
    judged = judged_layout(name, document.place(()).source, resolution.layout, problems, spec["model"]["id"])
    return replace(judged, places=_places(document, judged.problems))


def checked_spec(document: Document, options: Options) -> dict[str, Any]:
    """The spec with the command line's changes. Raises BadInput where the API server would not take it."""
    spec = edited(_with_card(_spec_of(document), options.cards), options.edits)
    found = faults(spec)
    if found:
        raise BadInput("\n".join(_fault_lines(document, found)), document.place(("spec", *found[0].path)))
    return spec


def judged_layout(
    name: str, source: str, layout: Layout | None, problems: tuple[Problem, ...], model: str
) -> Judgement:
    """A layout with its problems: what is known of the model, and remedies, added."""
    if layout is None:
        return Judgement(name, source, None, problems, model)
    split, floor, lighter = _estimated(layout)
    offered = remedies(layout, floor=floor, lighter=lighter) if refused(problems) else ()
    return Judgement(name, source, layout, problems, model, offered, split=split)


def is_omnimodel(data: Any) -> bool:
    """Whether a document says that it is an OmniModel, of whatever version."""
    return isinstance(data, dict) and str(data.get("apiVersion", "")).startswith(GROUP + "/")


def is_manifest(data: Any) -> bool:
    """Whether a document is some object of Kubernetes."""
    return isinstance(data, dict) and "apiVersion" in data and "kind" in data


def smallest_card(names: Iterable[str]) -> Card | None:
    """The smallest of cards given by name or memory. Raises BadInput."""
    found = [_card(name) for name in names]
    return min(found, key=lambda card: card.memory, default=None)


def _spec_of(document: Document) -> Mapping[str, Any]:
    data = document.data
    if data.get("apiVersion") != API_VERSION:
        place = document.place(("apiVersion",))
        raise BadInput(f"apiVersion {data.get('apiVersion')!r} is not known; this version reads {API_VERSION}", place)
    if data.get("kind") != KIND:
        raise BadInput(f"kind {data.get('kind')!r} is not {KIND}", document.place(("kind",)))
    if not isinstance(data.get("metadata") or {}, dict):
        raise BadInput("metadata must be a mapping", document.place(("metadata",)))
    if not isinstance(data.get("spec"), dict):
        raise BadInput("spec is missing, or is not a mapping", document.place(("spec",)))
    spec: Mapping[str, Any] = data["spec"]
    return spec


def _with_card(spec: Mapping[str, Any], names: tuple[str, ...]) -> Mapping[str, Any]:
    card = smallest_card(names)
    if card is None:
        return spec
    gpus = dict(spec.get("gpus") or {}) if isinstance(spec.get("gpus") or {}, dict) else {}
    gpus.pop("card", None)
    gpus.pop("memory", None)
    gpus["card" if card.product else "memory"] = card.name
    return {**spec, "gpus": gpus}


def _card(name: str) -> Card:
    known = cards().get(name)
    if known is not None:
        return known
    if name in cards_without_memory():
        raise BadInput("reports no memory size; give what its GPU may use, such as 110Gi", Place(f"--card {name}"))
    try:
        return Card(name, parse_amount(name))
    except QuantityError:
        meant = f"did you mean {near}? " if (near := closest(name, cards())) else ""
        listed = ", ".join(cards())
        raise BadInput(
            f"no card of that name: {meant}Known: {listed}; or give its memory, such as 81559Mi",
            Place(f"--card {name}"),
        ) from None


def _neighbours(held: tuple[str, ...]) -> tuple[Neighbour, ...]:
    found = []
    for text in held:
        slot, equals, amount = text.partition("=")
        place = Place(f"--held {text}")
        if not equals or not slot.isdigit() or len(slot) > 2:
            raise BadInput("is not of the form slot=amount, such as 0=26Gi", place)
        try:
            found.append(Neighbour("other tenants", int(slot), parse_budget(amount)))
        except QuantityError as error:
            raise BadInput(str(error), place) from None
    return tuple(found)


def _estimated(layout: Layout) -> tuple[Split, Floor | None, Lighter | None]:
    """Weights and KV cache by stage, and how far a stage can shrink; nothing where the size is not known."""
    size = layout.size
    if size is None or layout.card is None:
        return {}, None, None
    workload = Workload()
    split: dict[str, tuple[int, int]] = {}
    for stage in layout.stages:
        need = stage_need(layout, stage, size, workload)
        if need is not None and stage.budget is not None:
            room = kv_room(layout, stage, size, workload)
            split[stage.name] = (need.weights, max(0, room.size) if room else 0)

    def floor(stage: Stage, where: Layout) -> int | None:
        need = stage_need(where, stage, size, workload)
        return None if need is None else need.fixed + int(need.token) + 1

    def lighter(stage: Stage, where: Layout) -> int | None:
        need = stage_need(where, stage, size, workload)
        heavy = bool(need) and any(component.dtype in ("bf16", "fp16") for component in size.of_stage(stage.name))
        return need.weights // 2 if need is not None and heavy and stage.engine else None

    return split, floor, lighter


def _fault_lines(document: Document, found: Any) -> list[str]:
    lines = [f"{show(found[0].path)}: {found[0].message}"]
    lines += [f"{document.place(('spec', *fault.path))}: {show(fault.path)}: {fault.message}" for fault in found[1:10]]
    if len(found) > 10:
        lines.append(f"… and {len(found) - 10} more")
    return lines


def _places(document: Document, problems: Iterable[Problem]) -> dict[str, Place]:
    places = {}
    for problem in problems:
        path = _path(problem.field)
        if path in document.places and len(path) > 1:
            places[problem.field] = document.places[path]
    return places


def _path(text: str) -> Path:
    """`spec.stages[2].gpuMemory` → ("spec", "stages", 2, "gpuMemory")."""
    return tuple(
        int(match[2]) if match[2] and match[2].isdigit() else match[1] or match[2] for match in _FIELD.finditer(text)
    )


__all__ = [
    "Judgement",
    "Options",
    "Reason",
    "is_manifest",
    "is_omnimodel",
    "judge",
    "judged_layout",
    "smallest_card",
]
