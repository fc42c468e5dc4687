"""What the user adds, laid over a pod that the operator rendered.

Merged as kubectl's strategic merge patch does, by what Kubernetes' own schema says of each list: maps field by field;
containers, volumes and env by name, mounts by path, claims and ports by their own keys; other lists as a whole. A
volume or variable replaces that of its name, since two sources of one would be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omni_operator.api.pod_schema import pod_types
from omni_operator.api.structural import Schema
from omni_operator.planning.observed import ChildKind
from omni_operator.planning.rollout import Child
from omni_operator.planning.templates import OURS, PodTemplate
from omni_operator.rendering.affinity import both
from omni_operator.rendering.template import Owner, child

_DEFAULTS = {"protocol": "TCP"}
"""What a key means that was not written."""


def pod_child(
    name: str,
    owner: Owner,
    spec: Mapping[str, Any],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    templates: Iterable[PodTemplate],
) -> Child:
    """A pod with templates laid over it, the last one on top. Its first container is the operator's own."""
    laid = {name: value for name, value in spec.items() if name != "affinity"}
    free_labels: dict[str, str] = {}
    more: dict[str, str] = {}
    for template in templates:
        laid = merged(laid, _of_this_pod(template.spec, spec["containers"][0]["name"]), pod_types()["PodSpec"])
        free_labels |= template.labels
        more |= template.annotations
    if "affinity" in spec:
        laid["affinity"] = both(spec["affinity"], laid.get("affinity", {}))
    return child(ChildKind.POD, name, owner, laid, labels, {**more, **annotations}, free_labels=free_labels)


def merged(below: Any, above: Any, schema: Schema) -> Any:
    """`above` laid over `below`, both values of the type that the schema tells."""
    schema = pod_types()[schema["$ref"]] if "$ref" in schema else schema
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        members = schema.get("properties")
        inner = schema.get("additionalProperties", {})
        laid = dict(below)
        for name, value in above.items():
            kind = members.get(name, {}) if members is not None else inner
            laid[name] = merged(below[name], value, kind) if name in below else value
        return laid
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys and isinstance(below, list) and isinstance(above, list):
        return _merged_lists(below, above, schema, keys)
    return above


def _merged_lists(below: list[Any], above: list[Any], schema: Schema, keys: list[str]) -> list[Any]:
    whole = "retainKeys" in schema.get("x-kubernetes-patch-strategy", "")
    laid = {_key(item, keys): item for item in below}
    for item in above:
        key = _key(item, keys)
        known = key in laid and not whole
        laid[key] = merged(laid[key], item, schema["items"]) if known else item
    return list(laid.values())


def _key(item: Mapping[str, Any], keys: list[str]) -> tuple[Any, ...]:
    return tuple(item.get(key, _DEFAULTS.get(key)) for key in keys)


def _of_this_pod(spec: Mapping[str, Any], container: str) -> dict[str, Any]:
    """A common template names the operator's containers of both kinds of pods."""
    kept = [c for c in spec.get("containers", ()) if c["name"] == container or c["name"] not in OURS]
    return {**spec, "containers": kept} if kept else {k: v for k, v in spec.items() if k != "containers"}
