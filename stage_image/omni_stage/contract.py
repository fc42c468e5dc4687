"""What the operator and a stage container agree on: the file a container reads, its ports, and its exit codes.

One definition for both sides: the operator renders a `PodConfig` into a pod's annotation, which the kubelet mounts as
the file `CONFIG_PATH`; `python -m omni_stage` reads it. Standard library only: the supervisor imports this module and
must stay small.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

CONFIG_VERSION = 1
CONFIG_PATH = "/etc/omni/pod.json"
MODEL_CACHE_PATH = "/models"
"""Where the model cache volume is mounted in every container."""

SUPERVISOR_PORT = 9400
"""HTTP of the supervisor in every pod: /healthz, /readyz, /metrics, /stage."""
API_PORT = 8000
"""The front's OpenAI-compatible server."""
COMPLETION_PORT = 21000
"""On the front: stages report finished requests here."""
ABORT_PORT = 21001
"""On the front: stages subscribe to aborts here."""
STAGE_PORT_BASE = 21010
"""Stage number i of the pipeline listens on STAGE_PORT_BASE + 2*i (control) and + 2*i + 1 (its ranks)."""
RELAY_PORT_BASE = 22000
"""Stage number i of the pipeline serves tensors to its remote peers on RELAY_PORT_BASE + i."""

POD_IP_VARIABLE = "OMNI_POD_IP"
"""Environment variable with the pod's own address, set through the downward API."""
HOLD_VARIABLE = "OMNI_STAGE_HOLD"
"""Development only. `loading`: the supervisor starts no engine and reports state `loading` for ever."""


class Role(StrEnum):
    """What a pod is in its pipeline replica."""

    STAGE = "stage"
    FRONT = "front"


class Device(StrEnum):
    """Where the engines compute. `cpu` is for development: placement, shares and order stay as they are."""

    CUDA = "cuda"
    CPU = "cpu"


class Sharing(StrEnum):
    """How the stages of one GPU share it."""

    MPS = "MPS"
    TIME_SLICING = "TimeSlicing"
    NONE = "None"


class StageState(StrEnum):
    """`state` in the answer of /stage."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class ExitCode(IntEnum):
    """Why a stage container ended. The operator decides by this what restarts."""

    DRAINED = 0
    OUT_OF_BUDGET = 71
    """The stage asked for more GPU memory than its share: its own fault, a restart would repeat it."""
    CUDA_FAULT = 72
    """A fatal CUDA error or a lost MPS server: every client of the GPU is affected."""
    ENGINE_LOST = 73
    """The engine's process ended for any other reason; a restart in place may help."""
    PEER_LOST = 74
    """A neighbour in the pipeline did not take over a request in time."""
    START_TIMEOUT = 75
    """The engine was not ready within startup_timeout_seconds."""
    BAD_CONFIG = 78
    """The file, the pipeline or an engine argument is wrong: a restart would repeat it."""


REPEATED = (ExitCode.OUT_OF_BUDGET, ExitCode.BAD_CONFIG)
"""Ends that a restart would only repeat: the container stays down, and its log is there to be read."""


@dataclass(frozen=True)
class StageConfig:
    """One stage of the pipeline, as every pod of the replica sees it."""

    name: str
    process: str
    """Stages of one process run in one container."""
    host: str
    """DNS name under which peers reach the stage's pod."""
    control_port: int
    rank_port: int
    relay_port: int
    slots: tuple[int, ...] = ()
    """Logical GPU slots of the replica; empty for a stage that runs on the CPU. Inside the container the devices of
    its process's slots are numbered from 0 in the order of the slots."""
    tensor_parallel_size: int = 1
    memory_bytes: int | None = None
    """The stage's budget on each of its GPUs, bytes. Absent where another pod runs it: so a change of its budget is no
    change of this file."""
    memory_share: str | None = None
    """The same budget as a decimal share of the planned card (`0.78`)."""
    headroom_bytes: int = 0
    """How many of memory_bytes the engine leaves free of weights and KV cache, for what else it takes: above 0 where
    something ends the process at memory_bytes."""
    kv_cache_bytes: int | None = None
    """How many of memory_bytes the KV cache takes; the engine decides where absent."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """The user's arguments for this stage's engine, by the engine's own names."""
    supervisor_port: int = SUPERVISOR_PORT
    """Where the supervisor of the stage's pod answers. Differs from the default only where pods share an address."""


@dataclass(frozen=True)
class FrontConfig:
    """Where the coordinator listens."""

    host: str
    api_port: int = API_PORT
    completion_port: int = COMPLETION_PORT
    abort_port: int = ABORT_PORT
    supervisor_port: int = SUPERVISOR_PORT


@dataclass(frozen=True)
class PodConfig:
    """The whole file. Every pod of a replica gets the same one but for `role` and `process`."""

    role: Role
    name: str
    """The OmniModel's name."""
    namespace: str
    replica: int
    pipeline: str
    """Name in the catalogue: sglang-omni's model folder, or `tiny_omni`, which is ours."""
    variant: str
    """Variant of the pipeline; `default` for the pipeline's own."""
    model_path: str
    """Hub id, or an absolute path in the container."""
    served_name: str
    stages: tuple[StageConfig, ...]
    """All stages of the pipeline, in pipeline order."""
    front: FrontConfig
    process: str = ""
    """For role `stage`: which process this container runs."""
    device: Device = Device.CUDA
    sharing: Sharing = Sharing.NONE
    card_memory_bytes: int | None = None
    """Memory of the card that the shares were planned on, bytes."""
    startup_timeout_seconds: int = 1800
    drain_timeout_seconds: int = 20
    """After SIGTERM, how long requests in flight may take to finish. The pod's termination grace period has to be a few
    seconds longer."""
    version: int = CONFIG_VERSION

    def to_json(self) -> str:
        """The file's text, stable for equal configs."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> PodConfig:
        """Read the file's text.

        Raises ConfigError with the path of the first thing that is wrong: not JSON, another version, an unknown or
        missing field, a value of the wrong type.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"not JSON: {error}") from error
        if isinstance(data, dict) and data.get("version") != CONFIG_VERSION:
            raise ConfigError(f"version: {data.get('version')!r}, this image reads version {CONFIG_VERSION}")
        config = _read(PodConfig, data, "")
        assert isinstance(config, PodConfig)
        return config


class ConfigError(ValueError):
    """The pod's configuration file is not usable; the message names the field."""


def _read(kind: Any, value: Any, path: str) -> Any:
    """Build a value of type `kind` from parsed JSON, strictly."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _read(next(a for a in arguments if a is not type(None)), value, path)
    if origin is tuple:
        return _read_list(arguments[0], value, path)
    if origin is not None and issubclass(origin, Mapping):
        return _read_mapping(arguments[1], value, path)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_dataclass(kind, value, path)
    return _read_scalar(kind, value, path or "the file")


def _read_list(kind: Any, value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{path}: a list is needed, got {value!r}")
    return tuple(_read(kind, item, f"{path}[{i}]") for i, item in enumerate(value))


def _read_mapping(kind: Any, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: an object is needed, got {value!r}")
    return {key: _read(kind, item, f"{path}.{key}") for key, item in value.items()}


def _read_scalar(kind: Any, value: Any, here: str) -> Any:
    if issubclass(kind, (StrEnum, IntEnum)):
        try:
            return kind(value)
        except ValueError as error:
            raise ConfigError(f"{here}: {value!r} is none of {', '.join(str(k.value) for k in kind)}") from error
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{here}: {kind.__name__} is needed, got {value!r}")
    return value


def _read_dataclass(kind: type, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise ConfigError(f"{path or 'the file'}: an object is needed, got {value!r}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in value:
        if key not in fields:
            raise ConfigError(f"{path}.{key}".lstrip(".") + ": unknown field")
    for name, f in fields.items():
        if name not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{path}.{name}".lstrip(".") + ": missing")
    return kind(**{key: _read(hints[key], item, f"{path}.{key}".lstrip(".")) for key, item in value.items()})
