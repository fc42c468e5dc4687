"""What a cluster offers of GPUs, and by which of Kubernetes' ways they are asked for there.

`Auto` takes DRA where its device class exists, otherwise NVIDIA's device plugin where nodes advertise its resources. It
never settles for less than was asked: a way that does not offer the wanted sharing is not taken for another one, and
what is missing is said. What a model's pods were made for is kept while one of them runs, whatever nodes come or go.

Names and labels: NVIDIA's k8s-device-plugin 0.19 (`internal/lm/resource.go`, `api/config/v1/resources.go`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from omni_operator.api.enums import SharingBackend, SharingStrategy
from omni_operator.api.quantities import MIB, format_bytes
from omni_operator.api.reasons import Reason
from omni_operator.planning.layout import DevicePlugin, Layout, Problem, Severity
from omni_operator.planning.observed import STAGE, ObservedPod
from omni_operator.planning.rules.wording import few

DRIVER = "gpu.nvidia.com"
"""NVIDIA's DRA driver, and the name of its device class for whole GPUs."""
GPU_RESOURCE = "nvidia.com/gpu"
SHARED_RESOURCE = "nvidia.com/gpu.shared"
"""The device plugin's name for a part of a GPU where it was told to `renameByDefault`."""
COUNT_LABEL, MEMORY_LABEL, REPLICAS_LABEL, STRATEGY_LABEL = (
    f"nvidia.com/gpu.{what}" for what in ("count", "memory", "replicas", "sharing-strategy")
)
"""Labels that GPU feature discovery gives a node: GPUs, MiB of each, parts of each, `none`, `mps` or `time-slicing`."""
NAMED = 3
"""Nodes of a kind that a message names."""
PLUGIN_SHARING = {SharingStrategy.MPS: "mps", SharingStrategy.TIME_SLICING: "time-slicing"}


@dataclass(frozen=True)
class GpuNode:
    """A node that advertises GPUs through the device plugin."""

    name: str
    resources: Mapping[str, int]
    """Allocatable extended resources of the vendor, above 0."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def number(self, label: str) -> int | None:
        """A label's whole number; None where there is none."""
        text = self.labels.get(label, "")
        return int(text) if text.isdecimal() else None

    @property
    def sharing(self) -> str:
        """How its GPUs are shared: `none` where it does not say."""
        return self.labels.get(STRATEGY_LABEL, "none")


@dataclass(frozen=True)
class Cluster:
    """What is offered."""

    device_classes: frozenset[str] = frozenset()
    nodes: tuple[GpuNode, ...] = ()


@dataclass(frozen=True)
class Surroundings:
    """What planning knows of the place where the pods are to run. Without a cluster, it is believed to have what is
    asked for."""

    cluster: Cluster | None = None
    in_use: SharingBackend | None = None
    """By which way the model's pods that run now have their GPUs."""
    plugin: DevicePlugin | None = None
    """What those pods were made for, on the device plugin."""
    replicas: tuple[int, ...] = ()
    """Numbers of the replicas that have pods, those first that are best kept."""


@dataclass(frozen=True)
class Wish:
    """What the spec says of the way."""

    backend: SharingBackend = SharingBackend.AUTO
    device_class: str = DRIVER
    resource: str | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the pods' nodes must have."""
    dra_only: tuple[str, ...] = ()
    """Fields of the spec that are set and that only DRA can do something with."""


def on_cluster(layout: Layout, wish: Wish, surroundings: Surroundings) -> tuple[Layout, tuple[Problem, ...]]:
    """The layout with its backend decided; what was said that it cannot do, and, as warnings since nodes may still
    come, what the cluster lacks for it."""
    layout = replace(layout, backend=_backend(wish, surroundings))
    if not layout.slots:
        return layout, ()
    misplaced = _misplaced(layout, wish)
    if not layout.on_device_plugin:
        missing = _class_missing(wish, surroundings.cluster)
        return layout, (*misplaced, *((missing,) if missing else ()))
    plugin, lacking = _plugin(layout, wish, surroundings)
    return replace(layout, device_plugin=plugin), (*misplaced, *lacking)


def in_use(pods: Iterable[ObservedPod]) -> Surroundings:
    """What the pods that run now were made for."""
    for pod in pods:
        if pod.node is None or pod.component != STAGE:
            continue
        if pod.claim is not None:
            return Surroundings(in_use=SharingBackend.DRA)
        if pod.plugin is not None and (plugin := recalled(pod.plugin)) is not None:
            return Surroundings(in_use=SharingBackend.DEVICE_PLUGIN, plugin=plugin)
    return Surroundings()


def settled(pods: Iterable[ObservedPod]) -> bool:
    """Whether the cluster need not be asked what it offers: pods with GPUs are there, and those whose turn came have
    found their nodes."""
    asking = [pod for pod in pods if pod.claim is not None or pod.plugin is not None]
    return any(pod.node is not None for pod in asking) and all(pod.node or pod.gated for pod in asking)


def remembered(plugin: DevicePlugin) -> str:
    """What a pod is annotated with, for `recalled`."""
    return json.dumps(asdict(plugin), sort_keys=True, separators=(",", ":"))


def recalled(text: str) -> DevicePlugin | None:
    """What a pod was made for; None where someone wrote something else."""
    try:
        return DevicePlugin(**json.loads(text))
    except (TypeError, ValueError):
        return None


def _backend(wish: Wish, surroundings: Surroundings) -> SharingBackend:
    if wish.backend is not SharingBackend.AUTO:
        return wish.backend
    cluster = surroundings.cluster
    if wish.dra_only:
        return SharingBackend.DRA
    if surroundings.in_use is not None:
        return surroundings.in_use
    if cluster is None or wish.device_class in cluster.device_classes or not cluster.nodes:
        return SharingBackend.DRA
    return SharingBackend.DEVICE_PLUGIN


def _misplaced(layout: Layout, wish: Wish) -> tuple[Problem, ...]:
    if layout.on_device_plugin:
        fields, way, remedy = wish.dra_only, "DRA", "choose nodes by spec.scheduling.nodeSelector instead"
    else:
        fields = ("spec.gpus.resourceName",) if wish.resource is not None else ()
        way, remedy = "the device plugin", "choose GPUs by spec.gpus.deviceClassName and selector instead"
    return tuple(
        Problem(
            Reason.INVALID_SPEC,
            f"{name} is for {way}, and the GPUs are asked for through {layout.backend}.",
            name,
            remedy=f"Remove it; {remedy}.",
        )
        for name in fields
    )


def _class_missing(wish: Wish, cluster: Cluster | None) -> Problem | None:
    if cluster is None or wish.device_class in cluster.device_classes:
        return None
    there = f"there are: {', '.join(sorted(cluster.device_classes))}" if cluster.device_classes else "there is none"
    plugin = f" Nodes advertise {_advertised(cluster.nodes)}." if cluster.nodes else ""
    return Problem(
        Reason.RESOURCE_NOT_ADVERTISED,
        f"The cluster has no DeviceClass {wish.device_class} ({there}).{plugin}",
        "spec.gpus.sharing.backend" if cluster.nodes else "spec.gpus.deviceClassName",
        Severity.WARNING,
        remedy="Install NVIDIA's DRA driver" + (", or use backend DevicePlugin." if cluster.nodes else "."),
    )


def _plugin(layout: Layout, wish: Wish, surroundings: Surroundings) -> tuple[DevicePlugin, tuple[Problem, ...]]:
    """What the pods are made for: what they were made for, or else what the cluster's nodes offer."""
    shared = bool(layout.shared_slots())
    wanted = PLUGIN_SHARING.get(layout.strategy, "none")
    before, cluster = surroundings.plugin, surroundings.cluster
    fits = before is not None and before.sharing == wanted and (before.one_gpu_nodes or not shared)
    if before is not None and fits and wish.resource in (None, before.resource):
        return before, ()
    believed = DevicePlugin(one_gpu_nodes=shared, resource=wish.resource or GPU_RESOURCE, sharing=wanted)
    if cluster is None:
        return believed, ()
    fitting = [node for node in cluster.nodes if _offers(node, layout, wish, wanted)]
    usable = [node for node in fitting if not shared or node.number(COUNT_LABEL) == 1]
    if fitting and not usable:
        return replace(believed, one_gpu_nodes=False), ()
    if not usable:
        return believed, (_not_advertised(layout, wish, cluster, wanted),)
    # The coarsest division that serves: all pods of a model are made for one kind of node.
    best = min(usable, key=lambda node: (not _enough(node, layout), node.number(REPLICAS_LABEL) or 0, node.name))
    found = replace(
        believed,
        replicas=best.number(REPLICAS_LABEL) if wanted != "none" else None,
        resource=_resource(best, wish, wanted),
        memory_known=best.number(MEMORY_LABEL) is not None,
    )
    return found, ()


def _resource(node: GpuNode, wish: Wish, sharing: str) -> str:
    if wish.resource is not None:
        return wish.resource
    return SHARED_RESOURCE if sharing != "none" and SHARED_RESOURCE in node.resources else GPU_RESOURCE


def _offers(node: GpuNode, layout: Layout, wish: Wish, sharing: str) -> bool:
    if not wish.node_labels.items() <= node.labels.items():
        return False
    if node.sharing != sharing or _resource(node, wish, sharing) not in node.resources:
        return False
    memory = node.number(MEMORY_LABEL)
    return memory is None or layout.card is None or memory * MIB >= layout.card.memory


def _enough(node: GpuNode, layout: Layout) -> bool:
    """Whether it divides a GPU into as many parts as a slot has pods."""
    pods = max((len(use.processes) for use in layout.uses.values()), default=0)
    return (node.number(REPLICAS_LABEL) or 0) >= pods


def _not_advertised(layout: Layout, wish: Wish, cluster: Cluster, sharing: str) -> Problem:
    how = ", not shared" if sharing == "none" else f" shared by {sharing}"
    how += ", on nodes with one GPU" if layout.shared_slots() else ""
    size = f" of {format_bytes(layout.card.memory)}" if layout.card else ""
    there = f"Nodes advertise {_advertised(cluster.nodes)}." if cluster.nodes else "No node advertises a GPU."
    return Problem(
        Reason.RESOURCE_NOT_ADVERTISED,
        f"No node offers {wish.resource or GPU_RESOURCE}{size}{how}. {there}",
        "spec.gpus.sharing",
        Severity.WARNING,
        remedy="Change the device plugin's sharing configuration, spec.gpus.sharing, or spec.gpus.resourceName."
        if cluster.nodes
        else "Install NVIDIA's device plugin or DRA driver, or add a node with GPUs.",
    )


def _advertised(nodes: Iterable[GpuNode]) -> str:
    """`nvidia.com/gpu.shared (time-slicing; 79.6Gi; on gpu-1, gpu-2)`, kind by kind."""
    kinds: dict[tuple[str, str, int | None], list[str]] = {}
    for node in nodes:
        for resource in sorted(node.resources):
            kinds.setdefault((resource, node.sharing, node.number(MEMORY_LABEL)), []).append(node.name)
    return "; ".join(
        f"{resource} ({'not shared' if sharing == 'none' else sharing}"
        f"{f'; {format_bytes(memory * MIB)}' if memory else ''}; on {few(names, NAMED)})"
        for (resource, sharing, memory), names in kinds.items()
    )
