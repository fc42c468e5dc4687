"""Plan → manifests, as plain dicts. Pure: the same input renders the same bytes."""

from __future__ import annotations

from omni_operator.api.v1alpha1 import GpusSpec, OmniModelSpec
from omni_operator.planning.layout import Layout
from omni_operator.planning.rollout import Child, Rendered
from omni_operator.planning.targets import ReplicaTarget
from omni_operator.rendering.claim import resource_claim
from omni_operator.rendering.front import front_pod
from omni_operator.rendering.network_policy import network_policy
from omni_operator.rendering.service import endpoint_port, endpoint_service, peers_service
from omni_operator.rendering.stage_pod import stage_pod
from omni_operator.rendering.template import Owner, Settings

__all__ = ["Owner", "Settings", "endpoint_port", "render"]


def render(
    owner: Owner, spec: OmniModelSpec, layout: Layout, settings: Settings, targets: tuple[ReplicaTarget, ...]
) -> Rendered:
    """All children of an OmniModel, in the order in which they are made."""
    shared = (endpoint_service(owner, spec), peers_service(owner), network_policy(owner))
    return Rendered(shared, {target.index: _replica(owner, spec, layout, settings, target) for target in targets})


def _replica(
    owner: Owner, spec: OmniModelSpec, layout: Layout, settings: Settings, target: ReplicaTarget
) -> tuple[Child, ...]:
    gpus = spec.gpus or GpusSpec()
    groups = () if layout.on_device_plugin else target.groups
    claims = [resource_claim(owner, layout, gpus, target.index, group) for group in groups]
    stages = [stage_pod(owner, spec, layout, settings, pod) for pod in target.pods]
    return (*claims, *stages, front_pod(owner, spec, layout, settings, target))
