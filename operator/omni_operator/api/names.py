"""Names that the cluster sees: API group, label and annotation keys, and the name of every child object.

Pure functions of the OmniModel's name, so that a child can be found again without remembering anything.
"""

GROUP = "omnimodel.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "OmniModel"
PLURAL = "omnimodels"

MODEL_LABEL = f"{GROUP}/name"
"""Name of the OmniModel that a child belongs to; on every child."""
REPLICA_LABEL = f"{GROUP}/replica"
"""Index of the pipeline replica; on pods and claims."""
COMPONENT_LABEL = f"{GROUP}/component"
"""`stage` or `front`; on pods."""
PROCESS_LABEL = f"{GROUP}/process"
"""Process of the pipeline that a stage pod runs."""
GROUP_LABEL = f"{GROUP}/gpu-group"
"""Which pods are on one node for their GPUs, where the device plugin gives them; on stage pods."""
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "omni-operator"
"""Field manager of every write, and value of MANAGED_BY_LABEL."""

HASH_ANNOTATION = f"{GROUP}/template-hash"
"""Hash of what was rendered: a child whose hash differs from the plan's is out of date."""
POD_CONFIG_ANNOTATION = f"{GROUP}/pod-config"
"""The JSON file that the container reads, mounted through the downward API."""
GENERATION_ANNOTATION = f"{GROUP}/generation"
"""The OmniModel's generation for which a child was made, for people."""

TURN_ANNOTATION = f"{GROUP}/turn-since"
"""When a stage pod's gate was opened (RFC 3339). Written with the opening itself, and part of nothing that is
compared."""
DEVICE_PLUGIN_ANNOTATION = f"{GROUP}/device-plugin"
"""What a stage pod was made for, where the device plugin gives it its GPUs: JSON, read again while the pod runs."""
ACCEPTED_ANNOTATION = f"{GROUP}/accepted-at"
"""When the spec that a ControllerRevision keeps was accepted last, for people."""

TURN_GATE = f"{GROUP}/gpu-turn"
"""Scheduling gate of a stage pod, opened when it is the pod's turn to start on its GPUs."""

POD_CLAIM = "gpus"
"""Name under which a stage pod refers to its claim."""
CONFIG_VOLUME, SCRATCH_VOLUME, MODELS_VOLUME, SHM_VOLUME = "config", "tmp", "models", "shm"
"""Volumes of the operator's own containers."""

DRIVER_VARIABLE_PREFIX = "CUDA_MPS_"
DRIVER_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
"""Environment variables that the operator and the GPU driver set: another value opens a GPU that nobody booked, or
lifts the limit of a share."""

MAX_POD_NAME = 63
"""A pod's name is its hostname too, so it must be a DNS label: at most 63 characters (RFC 1123)."""


def driver_sets(variable: str) -> bool:
    """Whether an environment variable is set by the operator and the GPU driver."""
    return variable.startswith(DRIVER_VARIABLE_PREFIX) or variable in DRIVER_VARIABLES


def group_name(model: str, replica: int, first_slot: int | None = None) -> str:
    """The ResourceClaim of one pipeline replica, or that of the slots from `first_slot` where it has several."""
    return f"{model}-{replica}" if first_slot is None else f"{model}-{replica}-slot{first_slot}"


def stage_pod_name(model: str, replica: int, process: str) -> str:
    """The pod that runs one process of one pipeline replica."""
    return f"{model}-{replica}-{process.replace('_', '-').lower()}"


def front_pod_name(model: str, replica: int) -> str:
    """The front pod of one pipeline replica. The two hyphens cannot come from a process name."""
    return f"{model}-{replica}--front"


def service_name(model: str) -> str:
    """The Service of the endpoint."""
    return model


def peers_service_name(model: str) -> str:
    """The headless Service that gives each pod a DNS name."""
    return f"{model}-peers"


def network_policy_name(model: str) -> str:
    """The NetworkPolicy that closes the stage ports."""
    return model


def revision_name(model: str, uid: str, spec_hash: str) -> str:
    """The ControllerRevision of an accepted spec. Part of the uid is in it, so that what an earlier OmniModel of the
    same name left is never in the way."""
    return f"{model}-{uid[:8]}-{spec_hash}"


def pod_host(pod: str, model: str, namespace: str) -> str:
    """DNS name of a pod behind the headless Service, complete within any cluster domain."""
    return f"{pod}.{peers_service_name(model)}.{namespace}.svc"


def owner_reference(model: str, uid: str) -> dict[str, str | bool]:
    """What a child says of the OmniModel that it goes with."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": model,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
