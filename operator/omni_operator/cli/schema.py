"""A spec, checked and read without the pydantic models: importing them takes longer than a whole plan does.

The schema is the one that the API server gets, generated from the models and kept in `data/omnimodel-schema.json`; its
CEL rules have counterparts in `RULES`. A test holds both against the models, and another compares the verdicts. What is
wrong has the same words as the API server's, and the path of the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from omni_operator.api.names import driver_sets
from omni_operator.api.structural import Checker, Fault, Schema, show
from omni_operator.planning.rules.pod_fields import belongs

if TYPE_CHECKING:
    from omni_operator.api.v1alpha1 import OmniModelSpec

__all__ = ["RULES", "faults", "schema", "show", "view"]


@cache
def schema() -> Schema:
    """The structural schema of `spec`, without descriptions."""
    text = (files("omni_operator.cli") / "data" / "omnimodel-schema.json").read_text(encoding="utf-8")
    return cast(Schema, json.loads(text))


def faults(spec: Any) -> tuple[Fault, ...]:
    """All that the API server would refuse in a spec."""
    return tuple(Checker(rules=RULES, belongs=belongs).faults(spec, schema()))


def view(spec: Mapping[str, Any]) -> OmniModelSpec:
    """A spec without faults, to be read like the model: snake_case attributes, None where nothing was written."""
    return cast("OmniModelSpec", _view(spec, schema()))


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
    name = value.get("name")
    return not isinstance(name, str) or not driver_sets(name)


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
