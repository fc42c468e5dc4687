"""`--set path=value`: changes to a spec before it is planned, as a user would make them by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import pairwise
from typing import Any

from omni_operator.cli.documents import BadInput, Place, scalar

_SEGMENT = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)((?:\[[^\[\]]+\])*)")
MOST_SEGMENTS = 12


def edited(spec: Mapping[str, Any], edits: Iterable[str]) -> dict[str, Any]:
    """A copy of the spec with the edits made, each `path=value`.

    Paths are those of messages, with or without `spec.` in front: `gpus.card`, `stages[2].gpuMemory`, and by name
    `stages[thinker].gpuMemory` or `stages[name=thinker].gpuMemory`; a stage that is not listed yet is added. An empty
    value removes the field; `[0,1]` is a list. Raises BadInput.
    """
    result = deepcopy(dict(spec))
    for edit in edits:
        path, equals, text = _split(edit)
        where = Place(f"--set {edit}")
        if not equals or not path:
            raise BadInput("is not of the form path=value, such as stages[thinker].gpuMemory=80%", where)
        _set(result, _steps(path.removeprefix("spec."), where), _value(text), where)
    return result


def _split(edit: str) -> tuple[str, str, str]:
    """At the first = outside of brackets: `stages[name=thinker].gpuMemory=80%` has two."""
    depth = 0
    for i, character in enumerate(edit):
        depth += (character == "[") - (character == "]")
        if character == "=" and depth == 0:
            return edit[:i], "=", edit[i + 1 :]
    return edit, "", ""


def _steps(path: str, where: Place) -> list[str | int]:
    """`stages[name=thinker].gpuMemory` → ["stages", "=thinker", "gpuMemory"]; a leading = marks a name in a list."""
    steps: list[str | int] = []
    for part in path.split("."):
        match = _SEGMENT.fullmatch(part)
        if match is None or len(steps) > MOST_SEGMENTS:
            raise BadInput(f"{part!r} is no part of a path", where)
        steps.append(match[1])
        steps += [_item(inner) for inner in re.findall(r"\[([^\[\]]+)\]", match[2])]
    return steps


def _item(inner: str) -> str | int:
    return int(inner) if inner.isdigit() and len(inner) < 4 else "=" + inner.removeprefix("name=")


def _value(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        return [scalar(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    return scalar(text)


def _set(target: Any, steps: list[str | int], value: Any, where: Place) -> None:
    for here, following in pairwise(steps):
        empty: Any = [] if _in_list(following) else {}
        target = _member(target, here, empty, where)
    last = steps[-1]
    if _in_list(last):
        raise BadInput("sets a whole item of a list; set a field of it", where)
    if not isinstance(target, dict):
        raise BadInput(f"{last!r} is a field, but what contains it is not a mapping", where)
    if value is None:
        target.pop(str(last), None)
    else:
        target[str(last)] = value


def _member(target: Any, step: str | int, empty: Any, where: Place) -> Any:
    """What a step leads to; made if it is not there yet."""
    if not _in_list(step):
        if not isinstance(target, dict):
            raise BadInput(f"{step!r} is a field, but what contains it is not a mapping", where)
        if target.get(str(step)) is None:
            target[str(step)] = empty
        return target[str(step)]
    if not isinstance(target, list):
        raise BadInput(f"[{str(step).removeprefix('=')}] is an item of a list, but there is no list", where)
    if isinstance(step, int):
        if step >= len(target):
            raise BadInput(f"[{step}] is not there; the list has {len(target)} items", where)
        return target[step]
    for item in target:
        if isinstance(item, dict) and item.get("name") == step[1:]:
            return item
    target.append({"name": step[1:]})
    return target[-1]


def _in_list(step: str | int) -> bool:
    return isinstance(step, int) or step.startswith("=")
