"""The enumerations of the resource. Apart from its models, so that planning and a short run of the command line need no
pydantic: importing it takes longer than a whole plan."""

from __future__ import annotations

from enum import StrEnum


class Hold(StrEnum):
    """Where a container stops on its way to ready."""

    LOADING = "loading"


class Engine(StrEnum):
    """Serving engines that stages run on."""

    SGLANG_OMNI = "sglang-omni"


class SharingStrategy(StrEnum):
    """How the stages of one GPU share it."""

    AUTO = "Auto"
    MPS = "MPS"
    TIME_SLICING = "TimeSlicing"
    NONE = "None"


class SharingBackend(StrEnum):
    """By which of Kubernetes' ways the GPUs are asked for."""

    AUTO = "Auto"
    DRA = "DRA"
    DEVICE_PLUGIN = "DevicePlugin"


class Enforcer(StrEnum):
    """Who keeps a stage within its share of a GPU."""

    MPS = "MPS"
    """The control daemon refuses a process what is beyond its limit."""
    ENGINE = "engine"
    """The engine allocates no more than it was told."""
    NOTHING = "nothing"


class TimeSliceInterval(StrEnum):
    """For how long one process computes on a time-sliced GPU until the next has its turn (NVIDIA DRA driver)."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"


class Placement(StrEnum):
    """Whether all slots of a replica must be GPUs of one node."""

    SAME_NODE = "SameNode"
    ANY_NODE = "AnyNode"


class DeviceKind(StrEnum):
    """What the engines compute on."""

    CUDA = "cuda"
    CPU = "cpu"


class ConditionStatus(StrEnum):
    """Kubernetes' three condition values."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"
