"""The OmniModel resource, version v1alpha1, as pydantic models: what a user may write, and what the operator reports.

The CustomResourceDefinition is generated from these classes (`omni_operator.api.crd`). But for `replicas` nothing has a
default in the CRD: a field that was not written stays unwritten, so that GitOps tools see no drift. What a missing
field means is said in its description and resolved by `omni_operator.planning.resolve`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator
from pydantic.alias_generators import to_camel

from omni_operator.api.enums import (
    ConditionStatus,
    DeviceKind,
    Enforcer,
    Engine,
    Hold,
    Placement,
    SharingBackend,
    SharingStrategy,
    TimeSliceInterval,
)
from omni_operator.api.names import DRIVER_VARIABLE_PREFIX, DRIVER_VARIABLES
from omni_operator.api.quantities import (
    AMOUNT_PATTERN,
    GPU_MEMORY_PATTERN,
    PERCENT_PATTERN,
    QUANTITY_PATTERN,
    parse_amount,
    parse_budget,
    parse_percent,
    parse_quantity,
)

MAX_STAGES = 64
MAX_SLOTS = 32
"""A ResourceClaim holds at most 32 results, so a replica has at most 32 slots."""
MAX_REPLICAS = 64


class Resource(BaseModel):
    """Base of every part: camelCase on the wire, unknown fields refused, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="forbid", frozen=True
    )


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules of a part of the schema: (rule, message) pairs."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9_-]*[a-z0-9])?$", min_length=1, max_length=40)]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Path = Annotated[str, StringConstraints(pattern=r"^/", max_length=4096)]
Duration = Annotated[
    str, StringConstraints(pattern=r"^([0-9]{1,4}h)?([0-9]{1,5}m)?([0-9]{1,6}s)?$", min_length=2, max_length=24)
]
Percent = Annotated[str, StringConstraints(pattern=PERCENT_PATTERN, max_length=16)]
Amount = Annotated[str, StringConstraints(pattern=AMOUNT_PATTERN, max_length=32)]
_BUDGET_SCHEMA = {
    "x-kubernetes-int-or-string": True,
    "pattern": GPU_MEMORY_PATTERN,
    "maxLength": 32,
    **rules(
        (
            "type(self) == int ? self > 0 : (self.endsWith('%') ? double(self.replace('%', '')) > 0.0 : "
            "quantity(self).isGreaterThan(quantity('0')))",
            "must be above 0; to give a stage no GPU memory, leave out its gpus",
        ),
        (
            "type(self) == int || !self.endsWith('%') || double(self.replace('%', '')) <= 100.0",
            "is more than a whole card; at most 100% can be asked for",
        ),
    ),
}


def _quantity(value: str | int) -> str | int:
    parse_quantity(value)
    return value


QuantityValue = Annotated[
    str | int,
    AfterValidator(_quantity),
    Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
            "minimum": 0,
        }
    ),
]
GpuMemory = Annotated[str | int, Field(json_schema_extra=_BUDGET_SCHEMA)]


class SecretKeyRef(Resource):
    """A key of a Secret in the OmniModel's namespace."""

    name: ShortText = Field(description="Name of the Secret.")
    key: ShortText = Field(description="Key within the Secret.")


class PersistentVolumeClaimCache(Resource):
    """A PersistentVolumeClaim that holds the models."""

    claim_name: ShortText = Field(description="Name of a PersistentVolumeClaim in the same namespace.")
    read_only: bool | None = Field(
        None, description="Mount it read-only. Missing means false, so that a hub download can be kept."
    )


class HostPathCache(Resource):
    """A folder of the node."""

    path: Path = Field(description="Absolute path of an existing folder on every node that may run the model.")


class ImageCache(Resource):
    """An OCI image whose files are the model (Kubernetes image volume, read-only)."""

    reference: ShortText = Field(description="Image reference of the model.")


class EmptyDirCache(Resource):
    """Scratch space of each pod: models are downloaded again by every pod."""

    size_limit: Amount | None = Field(
        None, description="Most that may be stored, such as 200Gi. Missing means no limit."
    )


class ModelCache(Resource):
    """Where model files are kept. Exactly one member MUST be set. Mounted at /models in every container."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "[has(self.persistentVolumeClaim), has(self.hostPath), has(self.image), has(self.emptyDir)]"
                ".filter(x, x).size() == 1",
                "exactly one of persistentVolumeClaim, hostPath, image, emptyDir must be set",
            )
        )
    )
    persistent_volume_claim: PersistentVolumeClaimCache | None = Field(
        None, description="Models on a PersistentVolumeClaim."
    )
    host_path: HostPathCache | None = Field(None, description="Models in a folder of the node.")
    image: ImageCache | None = Field(None, description="Models in an OCI image, mounted as an image volume.")
    empty_dir: EmptyDirCache | None = Field(None, description="Models in scratch space, downloaded by each pod.")


class ModelSource(Resource):
    """Which model, and the pipeline that serves it."""

    id: ShortText = Field(
        description="Hub id such as Qwen/Qwen3-Omni-30B-A3B-Instruct, or an absolute path in the container "
        "(/models/... is the cache)."
    )
    pipeline: Name | None = Field(
        None, description="Pipeline of the catalogue, such as qwen3_omni. Missing means: found from the id."
    )
    variant: Name | None = Field(
        None, description="Variant of the pipeline, such as speech-colocated. Missing means the pipeline's own default."
    )
    served_name: ShortText | None = Field(None, description="Model name in the API's answers. Missing means the id.")
    cache: ModelCache = Field(description="Where model files are kept.")
    token_secret_ref: SecretKeyRef | None = Field(
        None, description="Hub token, given to the containers as HF_TOKEN. Missing means anonymous access."
    )


class SharingSpec(Resource):
    """How stages share a GPU."""

    strategy: SharingStrategy | None = Field(
        None,
        description="MPS: NVIDIA MPS with a memory limit per process. TimeSlicing: they take turns, no limit. None: "
        "one process per GPU. Auto or missing, as sglang-omni's own mps: auto: MPS where several processes of one GPU "
        "each share a slot, TimeSlicing where only a tensor-parallel one meets another, otherwise None.",
    )
    backend: SharingBackend | None = Field(
        None,
        description="DRA or DevicePlugin. Auto or missing: DRA where the cluster has the device class, otherwise "
        "DevicePlugin where nodes advertise its GPUs.",
    )
    interval: TimeSliceInterval | None = Field(
        None,
        description="TimeSlicing over DRA only: for how long a process computes until the next has its turn. Needs the "
        "driver's feature gate TimeSlicingSettings. Missing: the driver's own, which needs no gate.",
    )
    multi_user: bool | None = Field(
        None,
        description="MPS only: the control daemon serves every user id, so stage pods run as non-root. Missing means "
        "false: GPU pods run as user 0, without capabilities, since a single-user daemon refuses others.",
    )


class GpusSpec(Resource):
    """The cards that shares are planned on."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("!(has(self.card) && has(self.memory))", "card and memory say the same thing twice; set one of them")
        )
    )
    card: Name | None = Field(
        None,
        description="Card of the catalogue, such as h100-80gb. Shares are planned on its memory, and no slot gets a "
        "smaller GPU. Exactly one of card and memory SHOULD be set.",
    )
    memory: Amount | None = Field(
        None, description="The same as an amount, for cards that the catalogue lacks; true size, such as 81559Mi."
    )
    selector: Annotated[str, StringConstraints(min_length=1, max_length=10240)] | None = Field(
        None,
        description="DRA only: CEL expression over a device, as in a ResourceClaim, that every slot's GPU must meet.",
    )
    device_class_name: ShortText | None = Field(
        None, description="DRA only: DeviceClass of the GPUs. Missing means gpu.nvidia.com."
    )
    resource_name: ShortText | None = Field(
        None,
        description="DevicePlugin only: extended resource of the GPUs, or of parts of them. Missing: nvidia.com/gpu, "
        "or nvidia.com/gpu.shared where GPUs are shared and nodes call it so.",
    )
    placement: Placement | None = Field(
        None, description="SameNode or missing: all slots of a replica on one node. AnyNode: slots may be on several."
    )
    sharing: SharingSpec | None = Field(None, description="How stages share a GPU. Missing means Auto for everything.")
    max_share: Percent | None = Field(
        None, description="How much of each card may be given away, such as 94%. Missing means 100%."
    )


class EnvVar(Resource):
    """An environment variable with a plain value."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                f"!self.name.startsWith('{DRIVER_VARIABLE_PREFIX}') && !(self.name in {[*DRIVER_VARIABLES]})",
                "is set by the operator and the GPU driver; remove it and use gpus, gpuMemory or computePercentage",
            )
        )
    )
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)] = Field(
        description="Name. MUST NOT be one that the operator or the GPU driver sets (CUDA_MPS_*, *_VISIBLE_DEVICES)."
    )
    value: Annotated[str, StringConstraints(max_length=4096)] = Field(description="Value, taken as it is.")


class Resources(Resource):
    """CPU and memory of a container, as in a pod."""

    requests: dict[str, QuantityValue] | None = Field(None, description="What is set aside: {cpu: 2, memory: 16Gi}.")
    limits: dict[str, QuantityValue] | None = Field(None, description="What may be used at most.")


class PodTemplateMetadata(Resource):
    """What is added to a pod's metadata."""

    labels: Annotated[dict[str, str], Field(max_length=64)] | None = Field(
        None,
        description="More labels. A change is made on the running pods. The operator's own (omnimodel.io/…, "
        "app.kubernetes.io/name, /instance and /managed-by) MUST NOT be among them.",
    )
    annotations: Annotated[dict[str, str], Field(max_length=64)] | None = Field(
        None, description="More annotations, but for omnimodel.io/…. A change restarts the pod, as in a Deployment."
    )


class PodTemplate(Resource):
    """What is added to pods that the operator makes, in the fields of a pod."""

    metadata: PodTemplateMetadata | None = Field(None, description="More labels and annotations.")
    spec: dict[str, Any] | None = Field(
        None,
        description="Fields of a pod's spec, merged over the operator's as by kubectl: maps field by field; "
        "containers, volumes and env by name, mounts by path, other lists as a whole. Containers named stage and front "
        "are the operator's own, all others are added. What decides about GPUs, start and restart is the operator's, "
        "and is refused with the reason.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True, "maxProperties": 64},
    )


class StageSpec(Resource):
    """What differs from the catalogue for one stage, found by its name."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.tensorParallelSize) || !has(self.gpus) || self.tensorParallelSize == size(self.gpus)",
                "tensorParallelSize must equal the number of gpus, since each rank has a GPU of its own",
            ),
            (
                "!has(self.gpus) || size(self.gpus) > 0 || !has(self.gpuMemory)",
                "a stage without gpus has no gpuMemory; remove gpuMemory, or list the gpus",
            ),
        )
    )
    name: Name = Field(description="Name of the stage in the pipeline.")
    gpus: Annotated[list[Annotated[int, Field(ge=0, le=MAX_SLOTS - 1)]], Field(max_length=MAX_SLOTS)] | None = Field(
        None,
        description="Logical GPU slots of a replica, counted from 0 without gaps; never device indexes of a node. One "
        "per tensor-parallel rank. An empty list runs the stage on the CPU. Missing means the catalogue's.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    gpu_memory: GpuMemory | None = Field(
        None,
        description="Budget on each of its GPUs: a share of the whole card (78%, decimals allowed) or an amount "
        "(62Gi). MUST be known for every stage whose GPU has another stage. Missing means the catalogue's.",
    )
    kv_cache: Amount | None = Field(
        None, description="Part of gpuMemory that the KV cache takes, such as 8Gi. Missing: what the engine finds left."
    )
    tensor_parallel_size: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = Field(
        None, description="Ranks that the stage is split over. Missing means the number of its gpus."
    )
    process: Name | None = Field(
        None, description="Stages of one process share a container. Missing: a process of its own, named as the stage."
    )
    compute_percentage: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="MPS only: most of the GPU's threads that the stage may use, percent. Missing means 100."
    )
    start_order: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        None,
        description="Stages of one GPU start in rising order, one after another. Missing: after all that have one, "
        "biggest gpuMemory first.",
    )
    startup_timeout: Duration | None = Field(
        None, description="Time from the stage's turn until it must be ready, such as 45m. Missing means the model's."
    )
    engine_args: dict[str, Any] | None = Field(
        None,
        description="Arguments of the stage's engine by the engine's own names, such as {max_running_requests: 16}.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True, "maxProperties": 100},
    )
    env: Annotated[list[EnvVar], Field(max_length=64)] | None = Field(
        None,
        description="More environment variables of the stage's container.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    resources: Resources | None = Field(None, description="CPU and memory of the stage's container.")
    pod_template: PodTemplate | None = Field(
        None, description="What is added to the stage's pod, after spec.podTemplate."
    )

    @field_validator("gpu_memory")
    @classmethod
    def _budget(cls, value: str | int | None) -> str | int | None:
        if value is not None:
            parse_budget(value)
        return value

    @field_validator("kv_cache")
    @classmethod
    def _kv_cache(cls, value: str | None) -> str | None:
        if value is not None:
            parse_amount(value)
        return value


class FrontendSpec(Resource):
    """The OpenAI-compatible endpoint."""

    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        None, description="Port of the Service. Missing means 8000."
    )
    resources: Resources | None = Field(None, description="CPU and memory of the front's container.")
    pod_template: PodTemplate | None = Field(
        None, description="What is added to the front's pod, after spec.podTemplate."
    )


class Toleration(Resource):
    """A pod's toleration of a node's taint, as in Kubernetes."""

    key: ShortText | None = Field(None, description="Taint key. Missing tolerates every key; operator must be Exists.")
    operator: ShortText | None = Field(None, description="Exists or Equal. Missing means Equal.")
    value: Annotated[str, StringConstraints(max_length=63)] | None = Field(None, description="Taint value.")
    effect: ShortText | None = Field(None, description="NoSchedule, PreferNoSchedule or NoExecute. Missing means all.")
    toleration_seconds: int | None = Field(None, description="How long a NoExecute taint is tolerated.")


class SchedulingSpec(Resource):
    """Which nodes may run the pods."""

    node_selector: dict[str, str] | None = Field(None, description="Labels that a node must have.")
    tolerations: Annotated[list[Toleration], Field(max_length=64)] | None = Field(
        None, description="Taints of nodes that the pods tolerate."
    )
    priority_class_name: ShortText | None = Field(None, description="PriorityClass of the pods.")


class DevelopmentSpec(Resource):
    """For people who work on the operator or a pipeline. MUST NOT be set in production."""

    device: DeviceKind | None = Field(
        None,
        description="cpu: placement, shares and starting order stay as they are, but engines compute on the CPU. "
        "Missing means cuda.",
    )
    hold: Hold | None = Field(
        None,
        description="loading: containers start no engine and stay in that state, to look at placement and order of a "
        "model whose weights cannot run here.",
    )


class OmniModelSpec(Resource):
    """An omni-modal model served as a pipeline of stages that share GPUs."""

    engine: Engine | None = Field(None, description="Serving engine. Missing means sglang-omni.")
    model: ModelSource = Field(description="Which model, and the pipeline that serves it.")
    gpus: GpusSpec | None = Field(None, description="The cards that shares are planned on, and how they are shared.")
    stages: Annotated[list[StageSpec], Field(max_length=MAX_STAGES)] | None = Field(
        None,
        description="What differs from the catalogue, stage by stage. Missing: the catalogue's layout as it is.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] | None = Field(
        None,
        description="Pipeline replicas, each with GPUs of its own. Missing means 1.",
        # The only default: /scale, and so kubectl scale, HPA and KEDA, fail on an object without the field.
        json_schema_extra={"default": 1},
    )
    revision_history_limit: Annotated[int, Field(ge=0, le=100)] | None = Field(
        None,
        description="How many accepted specs are kept besides the current one, for kubectl omni rollout undo. Missing "
        "means 10.",
    )
    frontend: FrontendSpec | None = Field(None, description="The OpenAI-compatible endpoint.")
    image: ShortText | None = Field(
        None, description="Stage image. Missing means the one that the operator was installed with."
    )
    image_pull_secrets: Annotated[list[ShortText], Field(max_length=16)] | None = Field(
        None, description="Names of Secrets for pulling the image."
    )
    startup_timeout: Duration | None = Field(
        None, description="Time from a stage's turn until it must be ready, such as 30m. Missing means 30m."
    )
    scheduling: SchedulingSpec | None = Field(None, description="Which nodes may run the pods.")
    pod_template: PodTemplate | None = Field(None, description="What is added to every pod, of stages and front.")
    development: DevelopmentSpec | None = Field(None, description="For development only.")

    @field_validator("gpus")
    @classmethod
    def _amounts(cls, value: GpusSpec | None) -> GpusSpec | None:
        if value is not None and value.memory is not None:
            parse_amount(value.memory)
        if value is not None and value.max_share is not None:
            parse_percent(value.max_share)
        return value


class Condition(Resource):
    """One condition, as in every Kubernetes API."""

    type: ShortText = Field(description="Accepted, Scheduled, SharingReady, StagesReady or Ready.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    reason: ShortText = Field(description="One word for programs.")
    message: Annotated[str, StringConstraints(max_length=32768)] = Field(description="A sentence for people.")
    observed_generation: int = Field(description="Generation of the spec that this is about.")
    last_transition_time: ShortText = Field(
        description="When the status last changed.", json_schema_extra={"format": "date-time"}
    )


class StageStatus(Resource):
    """One stage of one pipeline replica."""

    name: ShortText = Field(description="Name of the stage.")
    replica: int = Field(description="Index of the pipeline replica.")
    pod: ShortText = Field(description="Pod that runs it.")
    state: ShortText = Field(description="Gated, Pending, Starting, Ready, Restarting, Failed, Terminating or Missing.")
    reason: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        None, description="What it waits for, or why it failed."
    )
    slots: list[int] | None = Field(None, description="Logical GPU slots it uses.")
    gpu_uuids: list[str] | None = Field(None, description="The GPUs behind its slots, in the same order.")
    gpu_memory: str | None = Field(None, description="Its budget on each GPU, as declared or from the catalogue.")
    gpu_memory_bytes: int | None = Field(None, description="The same in bytes.")
    enforced_by: Enforcer | None = Field(
        None,
        description="Who keeps it within its budget: MPS, which limits each of its processes; engine, which allocates "
        "no more than it was told; or nothing.",
    )
    measured_memory_bytes: int | None = Field(
        None,
        description="What its process was last seen to hold, once it is ready, to within 5 %: of each of its GPUs, or "
        "of the host. Stages of one process have the same figure.",
    )
    measured_memory_kind: ShortText | None = Field(
        None, description="torch: what PyTorch holds of each GPU. resident: host memory."
    )
    restarts: int = Field(description="Container restarts of its pod.")


class SlotStatus(Resource):
    """One GPU slot of one pipeline replica."""

    slot: int = Field(description="Logical slot.")
    replica: int = Field(description="Index of the pipeline replica.")
    uuid: str | None = Field(None, description="UUID of the GPU behind it, once one is allocated.")
    product: str | None = Field(None, description="Product name of that GPU.")
    node: str | None = Field(None, description="Node of that GPU.")
    capacity: str | None = Field(None, description="Memory of that GPU.")
    given_away: ShortText = Field(description="Sum of the stages' budgets as a share of the planned card.")
    stages: list[str] = Field(description="Stages that share it.")


class GroupRestartStatus(Resource):
    """That all stage pods of one replica were restarted together: after a fault that takes a whole GPU, or because one
    of them found no room on the node of the others."""

    replica: int = Field(description="Index of the pipeline replica.")
    restarts: int = Field(description="How often, counted anew after an hour without one.")
    last_restart: ShortText = Field(description="When the last one was.", json_schema_extra={"format": "date-time"})
    reason: Annotated[str, StringConstraints(max_length=1024)] = Field(description="Which stage failed, and how.")
    node: str | None = Field(None, description="Node that lacked something for it. Its new pods avoid that node.")


class OmniModelStatus(Resource):
    """What the operator sees."""

    observed_generation: int | None = Field(None, description="Generation of the spec that this status is about.")
    conditions: list[Condition] | None = Field(
        None,
        description="Accepted, Scheduled, SharingReady, StagesReady, Ready. All are good when True.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    revision: int | None = Field(
        None, description="Number of the last accepted spec, as kubectl omni rollout history has it."
    )
    revision_hash: str | None = Field(None, description="Hash of that spec without its replicas.")
    pipeline: str | None = Field(None, description="Pipeline and variant that were resolved.")
    sharing: str | None = Field(None, description="Strategy and backend that were resolved.")
    stages: list[StageStatus] | None = Field(None, description="Every stage of every replica.")
    stages_ready: str | None = Field(None, description="Ready stages of all, such as 5/7.")
    gpus: list[SlotStatus] | None = Field(None, description="Every GPU slot of every replica.")
    gpu_summary: str | None = Field(None, description="Slots and what is given away of each, such as 0: 94%.")
    group_restarts: list[GroupRestartStatus] | None = Field(
        None, description="Replicas whose stage pods were restarted together."
    )
    endpoint: str | None = Field(None, description="URL of the OpenAI-compatible endpoint within the cluster.")
    replicas: int | None = Field(None, description="Pipeline replicas that exist.")
    ready_replicas: int | None = Field(None, description="Pipeline replicas that serve.")
    selector: str | None = Field(None, description="Label selector of the pods, for the scale subresource.")


class OmniModel(Resource):
    """OmniModel serves an omni-modal model as a pipeline of stages that share GPUs."""

    model_config = ConfigDict(extra="ignore")
    spec: OmniModelSpec = Field(description="What is wanted.")
    status: OmniModelStatus | None = Field(None, description="What the operator sees. Written by the operator only.")
