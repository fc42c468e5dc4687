"""A spec, checked and read without the pydantic models: importing them takes longer than a whole plan does.

The schema is the one that the API server gets, generated from the models and kept in `data/omnimodel-schema.json`; its
CEL rules have counterparts in `RULES`. A test holds both against the models, and another compares the verdicts. What is
wrong has the same words as the API server's, and the path of the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from omni_operator.api.quantities import (
    AMOUNT_PATTERN,
    GPU_MEMORY_PATTERN,
    PERCENT_PATTERN,
    QuantityError,
    parse_amount,
    parse_budget,
    parse_percent,
)
from omni_operator.api.yaml_events import Path

if TYPE_CHECKING:
    from omni_operator.api.v1alpha1 import OmniModelSpec

Schema = Mapping[str, Any]

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


@cache
def schema() -> Schema:
    """The structural schema of `spec`, without descriptions."""
    text = (files("omni_operator.cli") / "data" / "omnimodel-schema.json").read_text(encoding="utf-8")
    return cast(Schema, json.loads(text))


def faults(spec: Any) -> tuple[Fault, ...]:
    """All that the API server would refuse in a spec."""
    return tuple(_faults(spec, schema(), ()))


def view(spec: Mapping[str, Any]) -> OmniModelSpec:
    """A spec without faults, to be read like the model: snake_case attributes, None where nothing was written."""
    return cast("OmniModelSpec", _view(spec, schema()))


def show(path: Path) -> str:
    """`spec.stages[2].gpuMemory`."""
    return "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def _faults(value: Any, node: Schema, path: Path) -> Iterator[Fault]:
    wrong = _wrong_type(value, node)
    if wrong:
        yield Fault(path, wrong)
        return
    found = list(_own_faults(value, node, path))
    yield from found
    if isinstance(value, dict):
        yield from _object_faults(value, node, path)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _faults(item, node["items"], (*path, i))
    if not found:
        for rule in node.get("x-kubernetes-validations", ()):
            counterpart = RULES.get(rule["rule"])
            if counterpart is not None and not counterpart(value):
                yield Fault(path, rule["message"])


def _wrong_type(value: Any, node: Schema) -> str:
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
    if isinstance(value, str):
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


def _object_faults(value: Mapping[str, Any], node: Schema, path: Path) -> Iterator[Fault]:
    for name in node.get("required", ()):
        if value.get(name) is None:
            yield Fault(path, f"{name} is missing")
    properties = node.get("properties")
    if properties is None:
        members = node.get("additionalProperties")
        if isinstance(members, dict):
            for name, member in value.items():
                yield from _faults(member, members, (*path, name))
        return
    for name, member in value.items():
        if name not in properties:
            yield Fault((*path, name), f"unknown field{_meant(name, properties)}")
        elif member is not None:  # The API server drops null where a field cannot be null.
            yield from _faults(member, properties[name], (*path, name))


def _view(value: Any, node: Schema) -> Any:
    if isinstance(value, dict) and "properties" in node:
        read = {name: value.get(name) for name in node["properties"]}
        return SimpleNamespace(
            **{_snake(k): None if v is None else _view(v, node["properties"][k]) for k, v in read.items()}
        )
    if isinstance(value, list):
        return [_view(item, node["items"]) for item in value]
    return value


def _snake(camel: str) -> str:
    return re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), camel)


def _meant(name: str, known: Mapping[str, Any]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(known)}"


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


def _one_cache(value: Mapping[str, Any]) -> bool:
    return sum(value.get(k) is not None for k in ("persistentVolumeClaim", "hostPath", "image", "emptyDir")) == 1


def _not_both(value: Mapping[str, Any]) -> bool:
    return value.get("card") is None or value.get("memory") is None


def _above_zero(value: str | int) -> bool:
    if isinstance(value, int):
        return value > 0
    if value.endswith("%"):
        return Fraction(value[:-1]) > 0
    return re.match(r"[0.]*[1-9]", value) is not None


def _within_card(value: str | int) -> bool:
    return isinstance(value, int) or not value.endswith("%") or Fraction(value[:-1]) <= 100


def _free_name(value: Mapping[str, Any]) -> bool:
    reserved = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
    name = value.get("name")
    return not isinstance(name, str) or not (name.startswith("CUDA_MPS_") or name in reserved)


def _rank_each(value: Mapping[str, Any]) -> bool:
    ranks, gpus = value.get("tensorParallelSize"), value.get("gpus")
    return ranks is None or not isinstance(gpus, list) or ranks == len(gpus)


def _memory_on_gpus(value: Mapping[str, Any]) -> bool:
    gpus = value.get("gpus")
    return not isinstance(gpus, list) or bool(gpus) or value.get("gpuMemory") is None


RULES: Mapping[str, Callable[[Any], bool]] = {
    "[has(self.persistentVolumeClaim), has(self.hostPath), has(self.image), has(self.emptyDir)]"
    ".filter(x, x).size() == 1": _one_cache,
    "!(has(self.card) && has(self.memory))": _not_both,
    "type(self) == int ? self > 0 : (self.endsWith('%') ? double(self.replace('%', '')) > 0.0 : "
    "quantity(self).isGreaterThan(quantity('0')))": _above_zero,
    "type(self) == int || !self.endsWith('%') || double(self.replace('%', '')) <= 100.0": _within_card,
    "!self.name.startsWith('CUDA_MPS_') && !(self.name in ['CUDA_VISIBLE_DEVICES', "
    "'NVIDIA_VISIBLE_DEVICES', 'NVIDIA_DRIVER_CAPABILITIES'])": _free_name,
    "!has(self.tensorParallelSize) || !has(self.gpus) || self.tensorParallelSize == size(self.gpus)": _rank_each,
    "!has(self.gpus) || size(self.gpus) > 0 || !has(self.gpuMemory)": _memory_on_gpus,
}
"""The schema's CEL rules, each with the same in Python, for a value whose own type and bounds are right."""
