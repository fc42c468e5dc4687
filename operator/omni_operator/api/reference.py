"""Prints the reference of every field, from the same schema as the CRD: `python -m omni_operator.api.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from omni_operator.api.crd import structural
from omni_operator.api.v1alpha1 import OmniModelSpec, OmniModelStatus

HEAD = """<!-- Generated from operator/omni_operator/api by `make generate`. Do not edit. -->
# OmniModel, field by field

`apiVersion: omnimodel.io/v1alpha1`, `kind: OmniModel`. But for `replicas` nothing is defaulted in the stored object:
what a missing field means is said below, and what was resolved is in the status. Amounts are Kubernetes quantities:
`Gi` is 2^30 bytes, `G` is 10^9.
"""


def rows(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """Path, type and description of every field below."""
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        mark = ", required" if name in required and path.startswith("spec") else ""
        yield here, kind_of(field) + mark, field["description"]
        inner = field.get("items", field)
        yield from rows(inner, f"{here}[]" if "items" in field else here)


def kind_of(field: Mapping[str, Any]) -> str:
    """A field's type in a few words."""
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if field["type"] == "array":
        return f"list of {field['items'].get('type', 'any')}"
    return str(field["type"])


def reference() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, model, path in (("Spec", OmniModelSpec, "spec"), ("Status", OmniModelStatus, "status")):
        parts.append(f"\n## {title}\n\n| field | type | meaning |\n|---|---|---|\n")
        for name, kind, description in rows(structural(model), path):
            parts.append(f"| `{name}` | {kind} | {description} |\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(reference())
