"""Pods of a replica that was released prefer another node than the one that had no room for it.

Put on when pods are made, beside what is rendered, and so part of no hash: a pod is not out of date because the node
that it once avoided has room again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omni_operator.api import names
from omni_operator.planning.observed import STAGE, ChildKind
from omni_operator.planning.rollout import Child, Step
from omni_operator.rendering.affinity import both

WEIGHT = 100
"""The most that Kubernetes knows: it outweighs what the scheduler prefers by itself, and forbids nothing."""


def avoiding_nodes(step: Step, nodes: Mapping[int, str]) -> Step:
    """The same step, its stage pods made so that they prefer other nodes than their replica's in `nodes`."""
    if not nodes:
        return step
    return replace(step, apply=tuple(_avoiding(child, nodes) for child in step.apply))


def _avoiding(child: Child, nodes: Mapping[int, str]) -> Child:
    labels = child.manifest["metadata"]["labels"]
    if child.kind is not ChildKind.POD or labels.get(names.COMPONENT_LABEL) != STAGE:
        return child
    node = nodes.get(int(labels[names.REPLICA_LABEL]))
    if node is None:
        return child
    manifest: dict[str, Any] = {**child.manifest, "spec": dict(child.manifest["spec"])}
    elsewhere = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]}
    preferred = [{"weight": WEIGHT, "preference": elsewhere}]
    ours = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    manifest["spec"]["affinity"] = both(ours, manifest["spec"].get("affinity") or {})
    return replace(child, manifest=manifest)
