"""What every child has in common: labels, owner, and the hash by which an outdated one is told from a current one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_operator.api import names
from omni_operator.planning.observed import ChildKind
from omni_operator.planning.rollout import Child

API_VERSIONS: Mapping[ChildKind, str] = {
    ChildKind.RESOURCE_CLAIM: "resource.k8s.io/v1",
    ChildKind.POD: "v1",
    ChildKind.SERVICE: "v1",
    ChildKind.NETWORK_POLICY: "networking.k8s.io/v1",
}


@dataclass(frozen=True)
class Owner:
    """The OmniModel that children are rendered for."""

    name: str
    namespace: str
    uid: str
    generation: int


@dataclass(frozen=True)
class Settings:
    """What the operator was installed with."""

    stage_image: str
    image_pull_policy: str = "IfNotPresent"


def child(
    kind: ChildKind,
    name: str,
    owner: Owner,
    spec: Mapping[str, Any],
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    hashed: Mapping[str, Any] | None = None,
    free_labels: Mapping[str, str] | None = None,
) -> Child:
    """The whole object. The hash covers all that decides what runs: not the owner's generation, not the gates, which
    the operator itself removes, and not free labels, which are changed in place. `hashed` is the spec where it has more
    that does not decide."""
    all_labels = {
        names.MODEL_LABEL: owner.name,
        names.MANAGED_BY_LABEL: names.MANAGER,
        "app.kubernetes.io/name": "omnimodel",
        "app.kubernetes.io/instance": owner.name,
        **labels,
    }
    decides = {key: value for key, value in (hashed or spec).items() if key != "schedulingGates"}
    digest = _digest({"spec": decides, "labels": all_labels, "annotations": annotations or {}})
    manifest = {
        "apiVersion": API_VERSIONS[kind],
        "kind": str(kind),
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": {**(free_labels or {}), **all_labels},
            "annotations": {
                names.HASH_ANNOTATION: digest,
                names.GENERATION_ANNOTATION: str(owner.generation),
                **(annotations or {}),
            },
            "ownerReferences": [names.owner_reference(owner.name, owner.uid)],
        },
        "spec": dict(spec),
    }
    return Child(kind, name, digest, manifest)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
