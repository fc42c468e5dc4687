"""Which fields of a pod are the user's, which the operator's, and why.

Every field that Kubernetes knows is judged here once; a test holds the lists against the schema, so that a new one is
refused until somebody has thought about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omni_operator.api.names import driver_sets


@dataclass(frozen=True)
class Reserved:
    """Why a field is the operator's, as the end of a sentence that begins with it; and what to do instead."""

    why: str
    instead: str = "Remove it."


_NETWORK_NAME = Reserved("is how the stages of a replica find each other")
_PRIORITY = Reserved("comes from the PriorityClass", "Set spec.scheduling.priorityClassName.")
_PROBE = Reserved(
    "is the supervisor's: by it the operator knows whether a stage serves, and the next one may start",
    "Remove it; startupTimeout gives a slow stage more time.",
)
_COMMAND = Reserved(
    "is the supervisor's, which starts the engine",
    "Remove it; use engineArgs, or spec.image for an image of your own.",
)
_REPORT = Reserved("is how the operator learns why a stage ended")
_RESTART = Reserved("is the operator's: a stage restarts in place, or with all that share its GPU")
_TERMINAL = Reserved("is of no use to a server")

POD_RESERVED: Mapping[str, Reserved] = {
    "activeDeadlineSeconds": Reserved("ends a pod after a time, and stages are to serve on"),
    "ephemeralContainers": Reserved("can only be added to a pod that runs", "Use kubectl debug."),
    "hostIPC": Reserved(
        "opens the node's shared memory to the pod; what stages of a GPU share, the GPU driver mounts for them alone"
    ),
    "hostNetwork": Reserved(
        "puts stages on the node's ports, where they collide and no NetworkPolicy closes them",
        "Remove it; the Service of the OmniModel leads to the front.",
    ),
    "hostPID": Reserved("shows the node's processes to the pod, whose supervisor must be process 1"),
    "hostname": _NETWORK_NAME,
    "hostnameOverride": _NETWORK_NAME,
    "nodeName": Reserved(
        "goes past the scheduler, which alone gives out GPUs: kubelet would refuse the pod",
        "Use spec.scheduling.nodeSelector, or affinity in a podTemplate.",
    ),
    "os": Reserved("is linux, for which the stage image is made"),
    "overhead": Reserved("comes from the RuntimeClass", "Set runtimeClassName alone."),
    "preemptionPolicy": _PRIORITY,
    "priority": _PRIORITY,
    "restartPolicy": _RESTART,
    "schedulingGates": Reserved(
        "is how the stages of a GPU take turns to start", "Remove it; startOrder of a stage changes their order."
    ),
    "schedulingGroup": Reserved("makes pods wait for each other, while the stages of a GPU are let go one by one"),
    "serviceAccount": Reserved("is the old name of serviceAccountName", "Use serviceAccountName."),
    "setHostnameAsFQDN": _NETWORK_NAME,
    "shareProcessNamespace": Reserved("takes process 1 from the supervisor, which ends a stage with all its processes"),
    "subdomain": _NETWORK_NAME,
}
POD_FREE = frozenset({
    "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy", "enableServiceLinks",
    "hostAliases", "hostUsers", "imagePullSecrets", "initContainers", "nodeSelector", "priorityClassName",
    "readinessGates", "resourceClaims", "resources", "runtimeClassName", "schedulerName", "securityContext",
    "serviceAccountName", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes",
})  # fmt: skip
"""Fields of a pod that a user may set; the rules judge what is in them."""
CONTAINER_RESERVED: Mapping[str, Reserved] = {
    "args": _COMMAND,
    "command": _COMMAND,
    "livenessProbe": _PROBE,
    "readinessProbe": _PROBE,
    "resizePolicy": _RESTART,
    "restartPolicy": _RESTART,
    "restartPolicyRules": _RESTART,
    "startupProbe": _PROBE,
    "stdin": _TERMINAL,
    "stdinOnce": _TERMINAL,
    "terminationMessagePath": _REPORT,
    "terminationMessagePolicy": _REPORT,
    "tty": _TERMINAL,
    "workingDir": _COMMAND,
}
"""Of the operator's own containers. In others, everything may be set that the rules do not forbid."""
CONTAINER_FREE = frozenset({
    "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "name", "ports", "resources", "securityContext",
    "volumeDevices", "volumeMounts",
})  # fmt: skip

_ONE_CLAIM = "the operator makes the claim of the GPUs itself, one for all stages that share them; use gpus"
_ELSEWHERE: Mapping[str, str] = {
    "annotations": "belongs in podTemplate.metadata, or in metadata of the OmniModel",
    "labels": "belongs in podTemplate.metadata, or in metadata of the OmniModel",
    "env": "belongs in a stage (spec.stages[].env), or in podTemplate.spec.containers[name=stage]",
    "envFrom": "belongs in podTemplate.spec.containers[name=stage]",
    "image": "belongs in spec, or in podTemplate.spec.containers[name=stage]",
    "nodeSelector": "belongs in spec.scheduling",
    "priorityClassName": "belongs in spec.scheduling",
    "tolerations": "belongs in spec.scheduling",
    "volumeMounts": "belongs in podTemplate.spec.containers[name=stage]",
    "resources": "belongs in a stage, or in spec.frontend",
    "sidecars": "belongs in podTemplate.spec.containers, or initContainers with restartPolicy Always",
    "resourceClaim": _ONE_CLAIM,
    "resourceClaims": _ONE_CLAIM,
    "resourceClaimTemplate": _ONE_CLAIM,
    "resourceClaimTemplateName": _ONE_CLAIM,
}


def belongs(name: str) -> str:
    """Where a field belongs that stands where there is none of its name, or why there is none; empty for any other."""
    if not isinstance(name, str):
        return ""
    if driver_sets(name):
        return "is set by the operator and the GPU driver; use gpus, gpuMemory or computePercentage"
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    reserved = POD_RESERVED.get(name) or CONTAINER_RESERVED.get(name)
    if reserved is not None:
        return f"there is none, since {name} {reserved.why}"
    return "belongs in podTemplate.spec" if name in POD_FREE else ""
