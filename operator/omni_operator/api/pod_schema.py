"""What Kubernetes 1.36 knows of a pod's spec: fields, types, and how lists are merged. Made by
`tests/api/regenerate_pod_schema.py`; a test compares it with a real API server's."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import cast

from omni_operator.api.structural import Schema


@cache
def pod_types() -> dict[str, Schema]:
    """Structural schemas by the name of their type. Within them, `$ref` is such a name."""
    text = (files("omni_operator.api") / "data" / "pod-schema.json").read_text(encoding="utf-8")
    return cast(dict[str, Schema], json.loads(text))


@cache
def partial_pod_spec() -> Schema:
    """A pod's spec of which nothing has to be there."""
    return {**pod_types()["PodSpec"], "required": ()}
