"""Makes what the operator knows of pods, out of Kubernetes' own OpenAPI document of its core API.

    kubectl get --raw /openapi/v3/api/v1 | python tests/api/regenerate_pod_schema.py

Kept are types, required fields, and how lists are merged; not the descriptions. A test compares the file with the API
server's own document.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "operator/omni_operator/api/data/pod-schema.json"
CORE = "io.k8s.api.core.v1."
REF = "#/components/schemas/"
QUANTITY = {"x-kubernetes-int-or-string": True, "format": "quantity"}
KEPT = ("type", "required")
WHOLE = {"x-kubernetes-patch-strategy": "merge,retainKeys"}
OURS = {
    # A value from somewhere replaces a plain one, and the other way round; kubectl would keep both, which is invalid.
    ("Container", "env"): WHOLE,
    # Ours has an item for each request of one claim, and a user's is added to them.
    ("ResourceRequirements", "claims"): {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name", "request"],
    },
}
"""Where lists are merged otherwise than Kubernetes says."""


def pod_schema(document: dict[str, Any]) -> dict[str, Any]:
    """Each type that a pod's spec is made of, by its short name, as a structural schema with references."""
    found: dict[str, Any] = {}
    waiting = [f"{CORE}PodSpec"]
    while waiting:
        name = waiting.pop()
        if short(name) not in found:
            schema = document["components"]["schemas"][name]
            waiting += references(schema)
            found[short(name)] = node(schema)
    for (kind, name), changes in OURS.items():
        found[kind]["properties"][name] |= changes
    return dict(sorted(found.items()))


def node(schema: dict[str, Any]) -> dict[str, Any]:
    """One schema, without what nothing here asks for."""
    if len(schema.get("allOf", ())) == 1:
        return node(schema["allOf"][0])
    if "$ref" in schema:
        return special(schema["$ref"]) or {"$ref": short(schema["$ref"].removeprefix(REF))}
    kept = {key: schema[key] for key in KEPT if key in schema}
    if "properties" in schema:
        kept["properties"] = {name: node(inner) for name, inner in sorted(schema["properties"].items())}
    if "items" in schema:
        kept["items"] = node(schema["items"])
    if "additionalProperties" in schema:
        kept["additionalProperties"] = node(schema["additionalProperties"])
    return kept | merging(schema)


def merging(schema: dict[str, Any]) -> dict[str, Any]:
    """Lists that are merged item by item, and by which of an item's fields. The fields are those of a server-side
    apply: it takes two where the older merge key takes one, which two items may share."""
    strategy = schema.get("x-kubernetes-patch-strategy", "")
    if "merge" not in strategy.split(",") or "x-kubernetes-patch-merge-key" not in schema:
        return {}
    keys = schema.get("x-kubernetes-list-map-keys") or [schema["x-kubernetes-patch-merge-key"]]
    kept: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    if "retainKeys" in strategy:
        kept["x-kubernetes-patch-strategy"] = strategy
    return kept


def special(reference: str) -> dict[str, Any] | None:
    """Types that are written as text, as a number, or anyhow."""
    name = short(reference.removeprefix(REF))
    return {"Quantity": QUANTITY, "IntOrString": {"x-kubernetes-int-or-string": True}}.get(name)


def references(schema: Any) -> list[str]:
    """Names of all types that a schema refers to."""
    if isinstance(schema, dict):
        own = [schema["$ref"].removeprefix(REF)] if "$ref" in schema and special(schema["$ref"]) is None else []
        return own + [name for inner in schema.values() for name in references(inner)]
    return [name for inner in schema for name in references(inner)] if isinstance(schema, list) else []


def short(name: str) -> str:
    """`PodSpec`."""
    return name.rpartition(".")[2]


def text_of(document: dict[str, Any]) -> str:
    """The file, a type to a line."""
    rows = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in pod_schema(document).items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    DATA.write_text(text_of(json.load(sys.stdin)), encoding="utf-8")
