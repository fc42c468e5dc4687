"""One snapshot of the cluster, as planning needs it. Built by `omni_operator.kube.observe` from live reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from omni_stage.contract import Role

STAGE, FRONT = Role.STAGE.value, Role.FRONT.value
"""Values of a pod's component label: what the container is told too."""


class ChildKind(StrEnum):
    """Kinds of objects that an OmniModel owns."""

    RESOURCE_CLAIM = "ResourceClaim"
    POD = "Pod"
    SERVICE = "Service"
    NETWORK_POLICY = "NetworkPolicy"


@dataclass(frozen=True)
class StagePage:
    """What a stage pod's supervisor says of it."""

    memory_bytes: int | None
    """Memory that its engine holds: on all its GPUs together, or of the host."""
    memory_kind: str
    """`torch` for what PyTorch holds on its GPUs, `resident` for host memory."""
    mps_problem: str = ""
    """Why it is no client of an MPS control daemon; empty where it is."""
    silent: bool = False
    """Its engine was ready, and is not heard of any more."""


DaemonLimits = Mapping[str, int]
"""Bytes that an MPS control daemon lets each of its clients pin at most, by request of its claim; none: no limit."""


@dataclass(frozen=True)
class ObservedPod:
    """A pod of ours."""

    name: str
    uid: str
    replica: int
    component: str
    process: str
    hash: str
    generation: int
    claim: str | None = None
    """The ResourceClaim that it names."""
    plugin: str | None = None
    """What it was made for on the device plugin, as JSON."""
    node: str | None = None
    phase: str = "Pending"
    gated: bool = False
    ready: bool = False
    deleting: bool = False
    restarts: int = 0
    exit_code: int | None = None
    """Exit code of the container's last end."""
    exit_message: str = ""
    """Last line that it left, one line."""
    waiting: str = ""
    """Why the container is not running, such as ImagePullBackOff."""
    unschedulable: str = ""
    """The scheduler's words, where it found no node."""
    started: datetime | None = None
    """When the container that runs now was started."""
    ready_since: datetime | None = None
    """When it last became ready, or stopped being so."""
    bound: datetime | None = None
    """When the scheduler gave it its node."""
    refusal: str = ""
    """kubelet's words, where it does not get as far as a container."""
    address: str = ""
    """Its IP."""
    page: StagePage | None = None
    """What its supervisor says, where it was asked and answered."""
    created: datetime | None = None
    turn_since: datetime | None = None
    """When its gate was opened; of a pod that has none, when it was made; None while it is closed."""
    unhealthy: str = ""
    """A device of its container that kubelet calls unhealthy, with the driver's words."""
    disruption: str = ""
    """Why it is taken away by the cluster, such as DeletionByDeviceTaintManager."""

    @property
    def been_ready(self) -> bool:
        """Whether the container that runs now has ever been ready. A pod is unready from before its container starts: a
        condition that changed after that was True meanwhile."""
        if self.ready or self.started is None or self.ready_since is None:
            return self.ready
        return self.ready_since > self.started

    stopped: bool = False
    """Whether its container has ended by itself with a code that a restart would only repeat, and stays down."""

    @property
    def ended(self) -> bool:
        """Whether it will never run again: evicted, or its node is gone."""
        return self.phase in ("Failed", "Succeeded")


@dataclass(frozen=True)
class Device:
    """A GPU that a claim was given."""

    request: str
    node: str
    name: str
    uuid: str | None = None
    product: str | None = None
    memory: int | None = None
    """Bytes."""


@dataclass(frozen=True)
class ObservedClaim:
    """A ResourceClaim of ours."""

    name: str
    uid: str
    replica: int
    hash: str
    deleting: bool = False
    allocated: bool = False
    devices: Mapping[str, Device] | None = None
    """By request name."""
    daemon_limits: DaemonLimits = field(default_factory=dict)


@dataclass(frozen=True)
class ObservedOther:
    """A Service or NetworkPolicy of ours."""

    kind: ChildKind
    name: str
    uid: str
    hash: str
    deleting: bool = False


@dataclass(frozen=True)
class Observed:
    """Everything of one OmniModel."""

    pods: Mapping[str, ObservedPod]
    claims: Mapping[str, ObservedClaim]
    others: Mapping[tuple[ChildKind, str], ObservedOther]
