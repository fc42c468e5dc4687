"""Writes `data/omnimodel-schema.json` from the models: `python -m omni_operator.cli.schema_file > …`. Not used at run
time; a test compares its output with the file."""

from __future__ import annotations

import json
import sys
from typing import Any

from omni_operator.api.crd import structural
from omni_operator.api.v1alpha1 import OmniModelSpec


def schema_text() -> str:
    """The structural schema of `spec` as JSON, without descriptions."""
    return json.dumps(_bare(structural(OmniModelSpec)), indent=1, ensure_ascii=False) + "\n"


def _bare(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _bare(v) for k, v in node.items() if not (k == "description" and isinstance(v, str))}
    return [_bare(item) for item in node] if isinstance(node, list) else node


if __name__ == "__main__":
    sys.stdout.write(schema_text())
