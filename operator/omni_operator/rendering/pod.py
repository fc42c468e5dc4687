"""What stage pods and the front have in common: the restricted pod around one supervised container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_operator.api import names
from omni_operator.api.enums import DeviceKind
from omni_operator.api.v1alpha1 import ModelCache, OmniModelSpec, SchedulingSpec
from omni_operator.planning.estimate_need import engine_headroom
from omni_operator.planning.layout import DEFAULT_STARTUP_TIMEOUT, Layout
from omni_operator.planning.rules.pods import ROOT, USER
from omni_operator.rendering.claim import request_name
from omni_operator.rendering.template import Owner, Settings
from omni_stage.contract import (
    CONFIG_PATH,
    HOLD_VARIABLE,
    MODEL_CACHE_PATH,
    POD_IP_VARIABLE,
    RELAY_PORT_BASE,
    REPEATED,
    STAGE_PORT_BASE,
    SUPERVISOR_PORT,
    Device,
    FrontConfig,
    PodConfig,
    Role,
    Sharing,
    StageConfig,
)

CLAIM = names.POD_CLAIM
GRACE_SECONDS = 45
"""From SIGTERM to SIGKILL: upstream drains a stage in about 6 s, a long answer takes longer."""


@dataclass(frozen=True)
class Container:
    """What differs from one container to the next."""

    name: str
    ports: Mapping[str, int]
    env: tuple[Mapping[str, Any], ...] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    slots: tuple[int, ...] = ()
    as_root: bool = False
    """Under a single-user MPS daemon a client must have the daemon's user id, which is 0."""
    own_shm: bool = True
    """Under MPS the driver mounts /dev/shm, so the pod must not."""


def pod_spec(spec: OmniModelSpec, owner: Owner, settings: Settings, container: Container, host: str) -> dict[str, Any]:
    """The pod's spec but for its claim and its gates."""
    volumes, mounts = _volumes(spec.model.cache, container.own_shm)
    result: dict[str, Any] = {
        "hostname": host,
        "subdomain": names.peers_service_name(owner.name),
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(container.as_root),
        "volumes": volumes,
        "containers": [
            {
                "name": container.name,
                "image": spec.image or settings.stage_image,
                "imagePullPolicy": settings.image_pull_policy,
                "ports": [{"name": name, "containerPort": port} for name, port in container.ports.items()],
                "env": [*_common_env(spec), *container.env],
                "resources": dict(container.resources),
                "volumeMounts": mounts,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                # Kubernetes 1.35 and later; an older one drops both, and restarts the container whatever its end was.
                "restartPolicy": "Never",
                "restartPolicyRules": [
                    {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": list(map(int, REPEATED))}}
                ],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                },
                "readinessProbe": {
                    "httpGet": {"path": "/readyz", "port": "supervisor"},
                    "periodSeconds": 1,
                    "failureThreshold": 2,
                    "timeoutSeconds": 3,
                },
                "livenessProbe": {
                    "httpGet": {"path": "/healthz", "port": "supervisor"},
                    "periodSeconds": 10,
                    "failureThreshold": 6,
                    "timeoutSeconds": 5,
                    "initialDelaySeconds": 10,
                },
            }
        ],
    }
    if container.slots:
        claims = [{"name": CLAIM, "request": request_name(slot)} for slot in container.slots]
        result["containers"][0]["resources"]["claims"] = claims
    if spec.image_pull_secrets:
        result["imagePullSecrets"] = [{"name": name} for name in spec.image_pull_secrets]
    return {**result, **_scheduling(spec.scheduling)}


def pod_config(spec: OmniModelSpec, owner: Owner, layout: Layout, replica: int, role: Role, process: str) -> PodConfig:
    """The file that the container reads. All pods of a replica get the same one but for role, process, and the budgets
    and the engine's arguments, which only their own process gets: so a change of one stage's share or arguments
    restarts that stage alone."""
    development = spec.development
    on_cpu = development is not None and development.device is DeviceKind.CPU
    return PodConfig(
        role=role,
        name=owner.name,
        namespace=owner.namespace,
        replica=replica,
        pipeline=layout.pipeline,
        variant=layout.variant,
        model_path=spec.model.id,
        served_name=spec.model.served_name or spec.model.id,
        stages=tuple(_stage_configs(owner, layout, replica, process)),
        front=FrontConfig(names.pod_host(names.front_pod_name(owner.name, replica), owner.name, owner.namespace)),
        process=process,
        device=Device.CPU if on_cpu else Device.CUDA,
        sharing=sharing_of(layout, process),
        card_memory_bytes=layout.card.memory if layout.card else None,
        startup_timeout_seconds=max(
            (stage.startup_timeout for stage in layout.stages if stage.process == process),
            default=DEFAULT_STARTUP_TIMEOUT,
        ),
    )


def sharing_of(layout: Layout, process: str) -> Sharing:
    """How the pod of a process shares its GPUs. `None` where it has them to itself, under MPS too."""
    slots = {slot for stage in layout.processes().get(process, ()) for slot in stage.slots}
    return Sharing(str(layout.strategy)) if slots & set(layout.divided_slots()) else Sharing.NONE


def supervisor_port() -> Mapping[str, int]:
    """The port that every container has."""
    return {"supervisor": SUPERVISOR_PORT}


def _stage_configs(owner: Owner, layout: Layout, replica: int, process: str) -> list[StageConfig]:
    rows = []
    for i, stage in enumerate(layout.stages):
        pod = names.stage_pod_name(owner.name, replica, stage.process)
        memory = stage.budget.bytes_of(layout.card.memory) if stage.budget and layout.card else None
        own = stage.process == process
        share = f"{memory / layout.card.memory:.9f}" if memory is not None and layout.card else None
        rows.append(
            StageConfig(
                name=stage.name,
                process=stage.process,
                host=names.pod_host(pod, owner.name, owner.namespace),
                control_port=STAGE_PORT_BASE + 2 * i,
                rank_port=STAGE_PORT_BASE + 2 * i + 1,
                relay_port=RELAY_PORT_BASE + i,
                slots=stage.slots,
                tensor_parallel_size=max(1, len(stage.slots)),
                memory_bytes=memory if own else None,
                memory_share=share if own else None,
                headroom_bytes=engine_headroom(layout, stage) if own else 0,
                kv_cache_bytes=stage.kv_cache if own else None,
                engine_args=dict(stage.engine_args) if own else {},
            )
        )
    return rows


def _common_env(spec: OmniModelSpec) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = [
        {"name": POD_IP_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "HF_HOME", "value": f"{MODEL_CACHE_PATH}/hub"},
    ]
    if spec.development is not None and spec.development.hold is not None:
        env.append({"name": HOLD_VARIABLE, "value": str(spec.development.hold)})
    token = spec.model.token_secret_ref
    if token is not None:
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key}}})
    return env


def _pod_security(as_root: bool) -> dict[str, Any]:
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}}
    if as_root:
        return {"runAsUser": ROOT, "runAsGroup": ROOT, "fsGroup": USER, **seccomp}
    return {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER, **seccomp}


def _volumes(cache: ModelCache, own_shm: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    folder, file = CONFIG_PATH.rsplit("/", 1)
    annotation = f"metadata.annotations['{names.POD_CONFIG_ANNOTATION}']"
    volumes: list[dict[str, Any]] = [
        {
            "name": names.CONFIG_VOLUME,
            "downwardAPI": {"items": [{"path": file, "fieldRef": {"fieldPath": annotation}}]},
        },
        {"name": names.SCRATCH_VOLUME, "emptyDir": {}},
        {"name": names.MODELS_VOLUME, **_cache_source(cache)},
    ]
    read_only = cache.image is not None or bool(
        cache.persistent_volume_claim and cache.persistent_volume_claim.read_only
    )
    mounts: list[dict[str, Any]] = [
        {"name": names.CONFIG_VOLUME, "mountPath": folder, "readOnly": True},
        {"name": names.SCRATCH_VOLUME, "mountPath": "/tmp"},
        {"name": names.MODELS_VOLUME, "mountPath": MODEL_CACHE_PATH, **({"readOnly": True} if read_only else {})},
    ]
    if own_shm:
        volumes.append({"name": names.SHM_VOLUME, "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": names.SHM_VOLUME, "mountPath": "/dev/shm"})
    return volumes, mounts


def _cache_source(cache: ModelCache) -> dict[str, Any]:
    if cache.persistent_volume_claim is not None:
        return {"persistentVolumeClaim": {"claimName": cache.persistent_volume_claim.claim_name}}
    if cache.host_path is not None:
        return {"hostPath": {"path": cache.host_path.path, "type": "Directory"}}
    if cache.image is not None:
        return {"image": {"reference": cache.image.reference}}
    limit = cache.empty_dir.size_limit if cache.empty_dir else None
    return {"emptyDir": {"sizeLimit": limit} if limit else {}}


def _scheduling(scheduling: SchedulingSpec | None) -> dict[str, Any]:
    return scheduling.model_dump(by_alias=True, exclude_none=True, mode="json") if scheduling else {}
