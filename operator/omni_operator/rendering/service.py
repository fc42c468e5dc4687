"""The two Services: the endpoint over all fronts, and the headless one that gives each pod a DNS name."""

from __future__ import annotations

from omni_operator.api import names
from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.planning.conditions import DEFAULT_PORT
from omni_operator.planning.observed import FRONT, ChildKind
from omni_operator.planning.rollout import Child
from omni_operator.rendering.template import Owner, child


def endpoint_port(spec: OmniModelSpec) -> int:
    """Port of the endpoint's Service."""
    return (spec.frontend.port if spec.frontend else None) or DEFAULT_PORT


def endpoint_service(owner: Owner, spec: OmniModelSpec) -> Child:
    """Balances over the fronts that are ready."""
    selector = {names.MODEL_LABEL: owner.name, names.COMPONENT_LABEL: FRONT}
    ports = [{"name": "api", "port": endpoint_port(spec), "targetPort": "api", "protocol": "TCP"}]
    return child(ChildKind.SERVICE, names.service_name(owner.name), owner, {"selector": selector, "ports": ports}, {})


def peers_service(owner: Owner) -> Child:
    """Names pods before they are ready too: stages must find each other to become so."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {names.MODEL_LABEL: owner.name}}
    return child(ChildKind.SERVICE, names.peers_service_name(owner.name), owner, spec, {})
