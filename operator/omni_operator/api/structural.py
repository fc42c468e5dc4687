"""A value against a structural schema, the smaller JSON Schema that Kubernetes takes: each fault with its place.

What the API server would refuse, for an OmniModel's spec as for that of a pod. What is wrong is said in the API
server's words or plainer ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_operator.api.quantities import (
    AMOUNT_PATTERN,
    GPU_MEMORY_PATTERN,
    PERCENT_PATTERN,
    QUANTITY_PATTERN,
    QuantityError,
    parse_amount,
    parse_budget,
    parse_percent,
    parse_quantity,
)
from omni_operator.api.yaml_events import Path

Schema = Mapping[str, Any]

MOST_LISTED = 16
"""Fields that a message lists, where no name comes near the unknown one."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and where."""

    path: Path
    message: str


def show(path: Path, root: str = "spec") -> str:
    """`spec.stages[2].resources.limits[nvidia.com/gpu]`."""
    return root + "".join(
        f".{part}" if isinstance(part, str) and _PLAIN.fullmatch(part) else f"[{part}]" for part in path
    )


@dataclass(frozen=True)
class Checker:
    """Holds values against schemas. All parts are optional."""

    definitions: Mapping[str, Schema] = field(default_factory=dict)
    """What `$ref` names."""
    rules: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    """CEL rules, each with the same in Python, for a value whose own type and bounds are right."""
    belongs: Callable[[str], str] = lambda name: ""
    """Where an unknown field belongs, or why there is none; empty where nobody knows."""

    def faults(self, value: Any, node: Schema, path: Path = ()) -> Iterator[Fault]:
        """All that is wrong with a value."""
        node = self.definitions[node["$ref"]] if "$ref" in node else node
        wrong = _wrong_type(value, node)
        if wrong:
            yield Fault(path, wrong)
            return
        found = list(_own_faults(value, node, path))
        yield from found
        if isinstance(value, dict):
            yield from self._object_faults(value, node, path)
        elif isinstance(value, list):
            for i, item in enumerate(value):
                yield from self.faults(item, node["items"], (*path, i))
        if not found:
            for rule in node.get("x-kubernetes-validations", ()):
                counterpart = self.rules.get(rule["rule"])
                if counterpart is not None and not counterpart(value):
                    yield Fault(path, rule["message"])

    def _object_faults(self, value: Mapping[str, Any], node: Schema, path: Path) -> Iterator[Fault]:
        for name in node.get("required", ()):
            if value.get(name) is None:
                yield Fault(path, f"{name} is missing")
        properties = node.get("properties")
        if properties is None:
            members = node.get("additionalProperties")
            if isinstance(members, dict):
                for name, member in value.items():
                    yield from self.faults(member, members, (*path, name))
            return
        for name, member in value.items():
            if name not in properties:
                yield Fault((*path, name), f"unknown field{self._meant(name, properties)}")
            elif member is not None:  # The API server drops null where a field cannot be null.
                yield from self.faults(member, properties[name], (*path, name))

    def _meant(self, name: str, known: Mapping[str, Any]) -> str:
        import difflib

        told = self.belongs(name)
        if told:
            return f"; {told}"
        close = difflib.get_close_matches(name, list(known), n=1)
        if close:
            return f"; did you mean {close[0]}?"
        return f"; known here: {', '.join(known)}" if len(known) <= MOST_LISTED else ""


def _wrong_type(value: Any, node: Schema) -> str:
    if node.get("format") == "quantity" and isinstance(value, float):
        return ""  # In a pod: 0.5 of a CPU.
    if node.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, (int, str)) and not isinstance(value, bool)
        return "" if fits else f"must be text or a whole number, not {_kind(value)}"
    wanted = node.get("type")
    if wanted is None:
        return ""
    fits = isinstance(value, _TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
    return "" if fits else f"must be {_ARTICLES[wanted]}, not {_kind(value)}"


def _own_faults(value: Any, node: Schema, path: Path) -> Iterator[Fault]:
    """What a value breaks by itself, but for its members."""
    if "enum" in node and value not in node["enum"]:
        yield Fault(path, f"must be one of {', '.join(node['enum'])}, not {_shown(value)}")
    if node.get("format") == "quantity":
        yield from _quantity_faults(value, path)
    elif isinstance(value, str):
        yield from _text_faults(value, node, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < node.get("minimum", value):
            yield Fault(path, f"must be at least {node['minimum']}, not {_shown(value)}")
        if value > node.get("maximum", value):
            yield Fault(path, f"must be at most {node['maximum']}, not {_shown(value)}")
    elif isinstance(value, list):
        yield from _list_faults(value, node, path)
    elif isinstance(value, dict) and len(value) > node.get("maxProperties", len(value)):
        yield Fault(path, f"has {len(value)} fields; at most {node['maxProperties']} are allowed")


def _quantity_faults(value: str | int | float, path: Path) -> Iterator[Fault]:
    try:
        parse_quantity(value)
    except QuantityError as error:
        yield Fault(path, str(error))


def _text_faults(value: str, node: Schema, path: Path) -> Iterator[Fault]:
    if len(value) < node.get("minLength", 0):
        yield Fault(path, "must not be empty")
    elif len(value) > node.get("maxLength", len(value)):
        yield Fault(path, f"has {len(value)} characters; at most {node['maxLength']} are allowed")
    elif "pattern" in node:
        wrong = _unreadable(value, node["pattern"])
        if wrong:
            yield Fault(path, wrong)


def _list_faults(value: Sequence[Any], node: Schema, path: Path) -> Iterator[Fault]:
    if len(value) > node.get("maxItems", len(value)):
        yield Fault(path, f"has {len(value)} items; at most {node['maxItems']} are allowed")
    kind = node.get("x-kubernetes-list-type")
    if kind == "set":
        keys = [json.dumps(item, sort_keys=True, default=str) for item in value]
    elif kind == "map":
        by = node["x-kubernetes-list-map-keys"]
        keys = [json.dumps([item.get(key) for key in by], default=str) for item in value if isinstance(item, dict)]
    else:
        return
    for i, key in enumerate(keys):
        if key in keys[:i]:
            yield Fault((*path, i), f"{json.loads(key) if kind == 'set' else json.loads(key)[0]} is listed twice")


def _unreadable(value: str, pattern: str) -> str:
    """What is wrong with a text, or nothing; in the quantities' own words where it should be one."""
    try:
        _READERS.get(pattern, str)(value)
    except QuantityError as error:
        return str(error)
    return "" if re.search(_to_python(pattern), value) else f"{_shown(value)} does not match {pattern}"


_READERS: Mapping[str, Callable[[str], object]] = {
    AMOUNT_PATTERN: parse_amount,
    GPU_MEMORY_PATTERN: parse_budget,
    PERCENT_PATTERN: parse_percent,
    QUANTITY_PATTERN: parse_quantity,
}


def _to_python(pattern: str) -> str:
    """RE2's `$` is the end of the text, Python's `\\Z`."""
    return pattern.replace("$|", r"\Z|")[:-1] + r"\Z" if pattern.endswith("$") else pattern


_ARTICLES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    names = {bool: "true or false", dict: "a mapping", list: "a list", str: "text", int: "a whole number"}
    shown = f" {_shown(value)}" if isinstance(value, (str, int, float)) else ""
    return names.get(type(value), "a number") + shown


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
