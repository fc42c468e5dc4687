"""Whole manifests of the examples against committed files. `make golden` writes them anew; the diff is the review."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import yaml

from omni_operator.api import names
from omni_operator.planning.rollout import Child
from omni_stage.contract import PodConfig
from tests.conftest import ROOT, example
from tests.planning.worlds import plan_of

GOLDEN = ROOT / "tests" / "rendering" / "golden"


def children(name: str) -> list[Child]:
    rendered = plan_of(example(name)).rendered
    return [*rendered.shared, *(child for replica in rendered.replicas.values() for child in replica)]


SHOWN = {
    "tiny-omni": None,
    "qwen3-omni-h100-colocated": ("qwen3-omni-0", "qwen3-omni-0-thinker"),
    "pod-templates": ("added-to-0-thinker", "added-to-0--front"),
}
"""Which children: all of the tiny model, of others what differs in kind."""


def shown(name: str) -> list[Child]:
    return [child for child in children(name) if SHOWN[name] is None or child.name in (SHOWN[name] or ())]


def readable(child: Child) -> dict[str, Any]:
    """The pod's file as YAML instead of a line of JSON."""
    manifest: dict[str, Any] = json.loads(json.dumps(child.manifest))
    annotations = manifest["metadata"]["annotations"]
    if names.POD_CONFIG_ANNOTATION in annotations:
        annotations[names.POD_CONFIG_ANNOTATION] = json.loads(annotations[names.POD_CONFIG_ANNOTATION])
    return manifest


@pytest.mark.parametrize("name", SHOWN)
def test_example_renders_as_committed(name: str) -> None:
    path = GOLDEN / f"{name}.yaml"
    text = yaml.safe_dump_all(map(readable, shown(name)), sort_keys=False, width=120)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text, "run `make golden` and read the diff"


@pytest.mark.parametrize("name", SHOWN)
def test_every_pod_s_file_can_be_read_by_the_container(name: str) -> None:
    files = [c.manifest["metadata"]["annotations"].get(names.POD_CONFIG_ANNOTATION) for c in children(name)]
    configs = [PodConfig.from_json(text) for text in files if text]
    assert len(configs) == len([child for child in children(name) if child.kind == "Pod"])
    ports = [p for s in configs[0].stages for p in (s.control_port, s.rank_port, s.relay_port)]
    assert len(set(ports)) == len(ports)
