"""The NetworkPolicy: the payloads between stages are pickled, so an open stage port is an open shell."""

from __future__ import annotations

from omni_operator.api import names
from omni_operator.planning.observed import ChildKind
from omni_operator.planning.rollout import Child
from omni_operator.rendering.template import Owner, child


def network_policy(owner: Owner) -> Child:
    """Stage ports are open to the model's own pods only; the API and the supervisor's read-only pages to all."""
    own_pods = {"matchLabels": {names.MODEL_LABEL: owner.name}}
    public = [{"port": "api", "protocol": "TCP"}, {"port": "supervisor", "protocol": "TCP"}]
    spec = {
        "podSelector": own_pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": own_pods}]}, {"ports": public}],
    }
    return child(ChildKind.NETWORK_POLICY, names.network_policy_name(owner.name), owner, spec, {})
