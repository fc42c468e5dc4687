"""Generates the CustomResourceDefinition from the pydantic models, strictly.

pydantic emits JSON Schema; Kubernetes takes structural schemas, a smaller language. Every keyword is either on a list
here or an error with its path, so that nothing is lost in silence. `python -m omni_operator.api.crd` prints the CRD.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import yaml

from omni_operator.api import names
from omni_operator.api.v1alpha1 import OmniModel, OmniModelSpec, OmniModelStatus, Resource

Schema = dict[str, Any]

_KEPT = frozenset({"type", "description", "format", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength",
                   "minItems", "maxItems", "maxProperties", "required"})  # fmt: skip
_DROPPED = frozenset({"title", "default"})
"""A default of None is dropped on purpose: the CRD writes as little as it can into what a user declared."""


class SchemaError(ValueError):
    """The models say something that a structural schema cannot; the message has the path."""


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition as a manifest."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["omni"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": _columns(),
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": OmniModel.__doc__,
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string", "description": "Version of this schema."},
                                "kind": {"type": "string", "description": "Always OmniModel."},
                                "metadata": {"type": "object"},
                                "spec": structural(OmniModelSpec),
                                "status": structural(OmniModelStatus),
                            },
                        }
                    },
                }
            ],
        },
    }


def _columns() -> list[dict[str, Any]]:
    def condition(kind: str, part: str) -> str:
        return f'.status.conditions[?(@.type=="{kind}")].{part}'

    rows: list[tuple[str, str, str, int]] = [
        ("Ready", "string", condition("Ready", "status"), 0),
        ("Reason", "string", condition("Ready", "reason"), 0),
        ("Stages", "string", ".status.stagesReady", 0),
        ("GPUs", "string", ".status.gpuSummary", 0),
        ("Pipeline", "string", ".status.pipeline", 1),
        ("Sharing", "string", ".status.sharing", 1),
        ("Endpoint", "string", ".status.endpoint", 1),
        ("Message", "string", condition("Ready", "message"), 1),
        ("Age", "date", ".metadata.creationTimestamp", 0),
    ]
    return [
        {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}
        for name, kind, path, priority in rows
    ]


def structural(model: type[Resource]) -> Schema:
    """The structural schema of a model. Raises SchemaError on anything that is not on the list."""
    document = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(document, document.get("$defs", {}), model.__name__)


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Schema], path: str) -> Schema:
    node = _resolved(node, definitions, path)
    result: Schema = {}
    for keyword, value in node.items():
        if keyword in _KEPT or keyword.startswith("x-kubernetes-") or (keyword == "default" and value is not None):
            result[keyword] = value
        elif keyword == "properties":
            result[keyword] = {k: _convert(v, definitions, f"{path}.{k}") for k, v in value.items()}
        elif keyword == "items":
            result[keyword] = _convert(value, definitions, f"{path}[]")
        elif keyword == "additionalProperties":
            if isinstance(value, dict):
                result[keyword] = _convert(value, definitions, f"{path}{{}}")
            elif value and "x-kubernetes-preserve-unknown-fields" not in node:
                raise SchemaError(f"{path}: a free-form object must say x-kubernetes-preserve-unknown-fields")
        elif keyword not in _DROPPED and keyword != "$defs":
            raise SchemaError(f"{path}: a structural schema has no {keyword!r} of the form {value!r}")
    return result


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Schema], path: str) -> Schema:
    """Without `$ref`, without `anyOf … null`, and an int-or-string without its members. Outer keywords win."""
    merged = dict(node)
    while "$ref" in merged or "anyOf" in merged:
        if "$ref" in merged:
            inner = definitions[merged.pop("$ref").removeprefix("#/$defs/")]
        else:
            choices = [choice for choice in merged.pop("anyOf") if choice.get("type") != "null"]
            if merged.get("x-kubernetes-int-or-string"):
                continue
            if len(choices) != 1:
                raise SchemaError(f"{path}: a structural schema has no choice between {len(choices)} types")
            inner = choices[0]
        merged = {**inner, **merged}
    return merged


def main() -> None:
    """Print the CRD as YAML."""
    sys.stdout.write("# Generated from operator/omni_operator/api by `make generate`. Do not edit.\n")
    yaml.safe_dump(crd(), sys.stdout, sort_keys=False, width=120, allow_unicode=True)


if __name__ == "__main__":
    main()
