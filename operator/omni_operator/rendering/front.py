"""The front: one pod per pipeline replica that runs the engine's own OpenAI server and coordinates the stages."""

from __future__ import annotations

from omni_operator.api import names
from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.planning.layout import Layout
from omni_operator.planning.observed import FRONT
from omni_operator.planning.rollout import Child
from omni_operator.planning.targets import ReplicaTarget
from omni_operator.planning.templates import layers
from omni_operator.rendering.overlay import pod_child
from omni_operator.rendering.pod import Container, pod_config, pod_spec, supervisor_port
from omni_operator.rendering.template import Owner, Settings
from omni_stage.contract import API_PORT, Role


def front_pod(owner: Owner, spec: OmniModelSpec, layout: Layout, settings: Settings, target: ReplicaTarget) -> Child:
    """The front of one replica. It names no claim: it may run on any node and outlives a restart of its GPUs."""
    config = pod_config(spec, owner, layout, target.index, Role.FRONT, "")
    container = Container(name=FRONT, ports={"api": API_PORT, **supervisor_port()})
    body = pod_spec(spec, owner, settings, container, target.front)
    labels = {names.REPLICA_LABEL: str(target.index), names.COMPONENT_LABEL: FRONT}
    annotations = {names.POD_CONFIG_ANNOTATION: config.to_json()}
    return pod_child(target.front, owner, body, labels, annotations, layers(layout.templates, FRONT))
