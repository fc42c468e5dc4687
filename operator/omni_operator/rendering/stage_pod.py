"""A stage pod: one process of the pipeline on its slots, behind a scheduling gate until its turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omni_operator.api import names
from omni_operator.api.quantities import MIB
from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.planning.cluster import remembered
from omni_operator.planning.layout import Layout
from omni_operator.planning.observed import STAGE
from omni_operator.planning.rollout import Child
from omni_operator.planning.rules.pods import runs_as_root
from omni_operator.planning.rules.sharing import mps_limit
from omni_operator.planning.targets import PodTarget
from omni_operator.planning.templates import layers
from omni_operator.rendering.device_plugin import affinity, gpus_of, group_label
from omni_operator.rendering.overlay import pod_child
from omni_operator.rendering.pod import CLAIM, Container, pod_config, pod_spec, supervisor_port
from omni_operator.rendering.template import Owner, Settings
from omni_stage.contract import Role


def stage_pod(owner: Owner, spec: OmniModelSpec, layout: Layout, settings: Settings, pod: PodTarget) -> Child:
    """The pod of one process."""
    config = pod_config(spec, owner, layout, pod.replica, Role.STAGE, pod.process)
    under_mps = layout.under_mps(pod.slots)
    container = Container(
        name=STAGE,
        ports=supervisor_port(),
        env=tuple(_mps_env(layout, pod, under_mps)),
        resources=gpus_of(layout, pod) if layout.on_device_plugin else {},
        slots=() if layout.on_device_plugin else pod.slots,
        as_root=runs_as_root(layout, pod.slots),
        own_shm=not under_mps,
    )
    body = pod_spec(spec, owner, settings, container, pod.name)
    labels = {
        names.REPLICA_LABEL: str(pod.replica),
        names.COMPONENT_LABEL: STAGE,
        names.PROCESS_LABEL: pod.process,
    }
    annotations = {names.POD_CONFIG_ANNOTATION: config.to_json()}
    if pod.group is not None and layout.on_device_plugin:
        group = group_label(owner, pod.group)
        labels |= group
        annotations[names.DEVICE_PLUGIN_ANNOTATION] = remembered(layout.device_plugin)
        body["affinity"] = affinity(layout, group)
    elif pod.group is not None:
        # Pods on the CPU name the claim too: so they land on the replica's node, and see no GPU.
        body["resourceClaims"] = [{"name": CLAIM, "resourceClaimName": pod.group}]
    if pod.group is not None:
        body["schedulingGates"] = [{"name": names.TURN_GATE}]
    added = layers(layout.templates, STAGE, [stage.name for stage in pod.stages])
    return pod_child(pod.name, owner, body, labels, annotations, added)


def _mps_env(layout: Layout, pod: PodTarget, under_mps: bool) -> Iterator[Mapping[str, Any]]:
    """Tightens the daemon's defaults to this pod's share. Ordinals count the GPUs that the container sees."""
    if not under_mps:
        return
    limits = [mps_limit(layout, layout.uses[slot], pod.process) for slot in pod.slots]
    known = [f"{ordinal}={limit // MIB}M" for ordinal, limit in enumerate(limits) if limit is not None]
    if known:
        yield {"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": ",".join(known)}
    percentages = [s.compute_percentage for s in pod.stages if s.compute_percentage is not None]
    if percentages:
        yield {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": str(max(percentages))}
