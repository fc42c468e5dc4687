"""How a stage pod asks for its GPUs through NVIDIA's device plugin: a resource, and the nodes where that is enough.

The plugin chooses the GPU. So stages that share one are sent to nodes with a single GPU, all of a group to the same,
and no other group there: another model's shares would come on top of theirs.
"""

from __future__ import annotations

import hashlib
from typing import Any

from omni_operator.api import names
from omni_operator.api.quantities import MIB
from omni_operator.planning.cluster import (
    COUNT_LABEL,
    MEMORY_LABEL,
    PLUGIN_SHARING,
    REPLICAS_LABEL,
    STRATEGY_LABEL,
)
from omni_operator.planning.layout import Layout
from omni_operator.planning.targets import PodTarget
from omni_operator.rendering.template import Owner

HOSTNAME = "kubernetes.io/hostname"


def group_label(owner: Owner, group: str) -> dict[str, str]:
    """The label of the pods of a group, the same in no other namespace."""
    return {names.GROUP_LABEL: hashlib.sha256(f"{owner.uid}/{group}".encode()).hexdigest()[:16]}


def gpus_of(layout: Layout, pod: PodTarget) -> dict[str, Any]:
    """A container's resources: its GPUs, or one part of a shared one."""
    return {"limits": {layout.device_plugin.resource: str(len(pod.slots))}} if pod.slots else {}


def affinity(layout: Layout, label: dict[str, str]) -> dict[str, Any]:
    """On nodes of the right kind, together with its group, and not with another group on a shared GPU."""
    [(key, value)] = label.items()
    terms = [{"labelSelector": {"matchLabels": label}, "topologyKey": HOSTNAME}]
    result: dict[str, Any] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    expressions = _node_expressions(layout)
    if expressions:
        wanted = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        result["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": wanted}
    if layout.device_plugin.one_gpu_nodes:
        others = [{"key": key, "operator": "Exists"}, {"key": key, "operator": "NotIn", "values": [value]}]
        apart = {"labelSelector": {"matchExpressions": others}, "namespaceSelector": {}, "topologyKey": HOSTNAME}
        result["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    return result


def _node_expressions(layout: Layout) -> list[dict[str, Any]]:
    plugin = layout.device_plugin
    if plugin.shared:
        wanted = {STRATEGY_LABEL: plugin.sharing}
        if plugin.one_gpu_nodes:
            wanted[COUNT_LABEL] = "1"
        if plugin.replicas is not None:
            wanted[REPLICAS_LABEL] = str(plugin.replicas)
        expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in wanted.items()]
    else:
        # Holds of nodes without the label too: not every cluster runs GPU feature discovery.
        expressions = [{"key": STRATEGY_LABEL, "operator": "NotIn", "values": sorted(PLUGIN_SHARING.values())}]
    if plugin.memory_known and layout.card is not None:
        least = -(-layout.card.memory // MIB)
        expressions.append({"key": MEMORY_LABEL, "operator": "Gt", "values": [str(least - 1)]})
    return expressions
