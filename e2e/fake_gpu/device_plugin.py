"""PURE: what NVIDIA's k8s-device-plugin offers, allocates and labels, for GPUs that do not exist.

Read in https://github.com/NVIDIA/k8s-device-plugin (August 2026):

| fact | where |
|---|---|
| one resource, `nvidia.com/gpu`; `nvidia.com/gpu.shared` where `renameByDefault` is set beside `resources` | `api/config/v1/{resources,replicas}.go` |
| a replica's id is `<uuid>::<number>`; there are at least 2 of them, and at most 48 under MPS | `internal/rm/devices.go`, `api/config/v1/replicas.go`, `cmd/mps-control-daemon/mps/device.go` |
| a request of 2 replicas is refused only if `failRequestsGreaterThanOne`; MPS sets it, time-slicing does not | `internal/rm/rm.go`, `api/config/v1/config.go` |
| replicas go to the GPU with the fewest in use (`distributed`); `packed` is the other policy | `internal/rm/allocate.go` |
| a container gets NVIDIA_VISIBLE_DEVICES: the uuids of its GPUs, each once | `internal/plugin/server.go` |
| under MPS also CUDA_MPS_PIPE_DIRECTORY=/mps/RESOURCE/pipe, that folder, and the node's one MPS `/dev/shm`, and no limit variable | `internal/plugin/mps.go`, `cmd/mps-control-daemon/mps/root.go` |
| a pod's own volume at `/dev/shm` hides the plugin's (under DRA it is the other way round) | the kubelet's order of mounts; seen on a node |
| the one daemon of the resource limits each client process to memory ÷ replicas (whole MiB) and 100 ÷ replicas % of the threads | `cmd/mps-control-daemon/mps/daemon.go` |
| labels are of `nvidia.com/gpu` whatever the resource is called; `.count` counts GPUs, `.memory` is the whole GPU in MiB | `internal/lm/resource.go` |
| `.product` ends in `-SHARED` where the resource is shared and not renamed; `mps.capable` is true under MPS alone | `internal/lm/{resource,nvml}.go` |
"""  # noqa: E501

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.fake_gpu.cdi import MARKERS, MEMORY, marker_name
from e2e.fake_gpu.profiles import CUDA_DRIVER_VERSION, DRIVER_VERSION, Gpu

GPU_RESOURCE = "nvidia.com/gpu"
LABEL_PREFIX = "nvidia.com/"
NONE, TIME_SLICING, MPS = "none", "time-slicing", "mps"
SHARINGS = (NONE, TIME_SLICING, MPS)
POLICIES = ("distributed", "packed")
MOST_MPS_CLIENTS = 48
MIB = 1024 * 1024


class Invalid(Exception):
    """The plugin's reason not to start, or not to allocate."""


@dataclass(frozen=True)
class DevicePluginConfig:
    """A configuration of the plugin, as far as it is played.

    `sharing` is `none`, `time-slicing` or `mps`; `rename` is its `renameByDefault`, `fail_above_one` its
    `failRequestsGreaterThanOne` (None: not set). Raises Invalid where the plugin would not start.
    """

    sharing: str = NONE
    replicas: int = 1
    rename: bool = False
    fail_above_one: bool | None = None
    policy: str = "distributed"

    def __post_init__(self) -> None:
        if self.sharing not in SHARINGS:
            raise Invalid(f"unknown sharing {self.sharing!r}: one of {', '.join(SHARINGS)}")
        if self.policy not in POLICIES:
            raise Invalid(f"unknown allocation policy {self.policy!r}: one of {', '.join(POLICIES)}")
        if self.shared and self.replicas < 2:
            raise Invalid("number of replicas must be >= 2")
        if not self.shared and (self.replicas != 1 or self.rename):
            raise Invalid("replicas and rename need a sharing")
        if self.sharing == MPS and self.replicas > MOST_MPS_CLIENTS:
            exceeded = f"maximum allowed replicas exceeded: {self.replicas} > {MOST_MPS_CLIENTS}"
            raise Invalid(f"invalid MPS configuration: invalid device {exceeded}")

    @property
    def shared(self) -> bool:
        return self.sharing != NONE

    @property
    def resource(self) -> str:
        return f"{GPU_RESOURCE}.shared" if self.rename else GPU_RESOURCE

    @property
    def refuses_above_one(self) -> bool:
        return self.sharing == MPS if self.fail_above_one is None else self.fail_above_one


@dataclass(frozen=True)
class Mount:
    """A path of the machine in the container."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Allocation:
    """What a container is given."""

    environment: Mapping[str, str]
    mounts: Sequence[Mount]


def device_ids(config: DevicePluginConfig, gpus: Sequence[Gpu]) -> list[str]:
    """The ids that the kubelet is told of."""
    if not config.shared:
        return [gpu.uuid for gpu in gpus]
    return [f"{gpu.uuid}::{number}" for gpu in gpus for number in range(config.replicas)]


def uuid_of(device: str) -> str:
    return device.partition("::")[0]


def preferred(
    config: DevicePluginConfig, devices: Sequence[str], available: Sequence[str], required: Sequence[str], size: int
) -> list[str]:
    """The devices that the plugin would take: one after another from the GPU that the policy prefers."""
    free = [each for each in available if each in devices and each not in required]
    if len(free) < size - len(required):
        raise Invalid("not enough available devices to satisfy allocation")
    used = Counter(uuid_of(each) for each in devices)
    used.subtract(uuid_of(each) for each in free)
    sign = 1 if config.policy == "distributed" else -1
    picked, chosen = Counter[str](), list(required)
    while len(chosen) < size:
        best = min(free, key=lambda each: (sign * used[uuid_of(each)], picked[uuid_of(each)]))
        free.remove(best)
        chosen.append(best)
        used[uuid_of(best)] += 1
        picked[uuid_of(best)] += 1
    return chosen


def check(config: DevicePluginConfig, devices: Sequence[str], requested: Sequence[str]) -> None:
    """Raise Invalid, with the plugin's words, for a request that it would not serve."""
    problem = f'invalid allocation request for "{config.resource}": invalid request'
    if unknown := [each for each in requested if each not in devices]:
        raise Invalid(f"{problem}: unknown device: {unknown[0]}")
    if config.shared and len(requested) > 1 and config.refuses_above_one:
        raise Invalid(f"{problem}: maximum request size for shared resources is 1; found {len(requested)}")


def allocate(
    config: DevicePluginConfig, gpus: Sequence[Gpu], requested: Sequence[str], markers: Path, memory: Path, root: Path
) -> Allocation:
    """What the container gets of `requested`. `markers` holds the GPUs' files, `memory` the ledger's socket, `root` the
    folders of MPS daemons."""
    uuids = list(dict.fromkeys(uuid_of(each) for each in requested))
    given = [gpu for gpu in gpus if gpu.uuid in uuids]
    mounts = [Mount(markers / marker_name(gpu), f"{MARKERS}/{marker_name(gpu)}", read_only=True) for gpu in given]
    mounts.append(Mount(memory, MEMORY, read_only=True))
    environment = {"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)}
    if config.sharing == MPS:
        environment["CUDA_MPS_PIPE_DIRECTORY"] = f"/mps/{config.resource}/pipe"
        mounts += [
            Mount(root / config.resource / "pipe", f"/mps/{config.resource}/pipe"),
            Mount(root / "shm", "/dev/shm"),
        ]
    return Allocation(environment, mounts)


def daemon_of(config: DevicePluginConfig, gpus: Sequence[Gpu]) -> dict[str, object]:
    """What the resource's MPS control daemon was told, in the shape that the DRA driver's daemons have here."""
    limits = {gpu.uuid: f"{gpu.profile.memory_bytes // config.replicas // MIB}M" for gpu in gpus}
    uuids = sorted(gpu.uuid for gpu in gpus)
    threads = 100 // config.replicas
    return {"id": config.resource, "uuids": uuids, "limits": limits, "active_threads": threads, "multi_user": False}


def labels(config: DevicePluginConfig, gpus: Sequence[Gpu]) -> dict[str, str]:
    """The node's labels that GPU feature discovery sets; none where there is no GPU."""
    if not gpus:
        return {}
    profile = gpus[0].profile
    major, minor = (int(each) for each in profile.capability.split(".")[:2])
    suffix = "-SHARED" if config.shared and not config.rename else ""
    of_gpu = {
        "product": _sanitised(profile.product) + suffix,
        "count": len(gpus),
        "replicas": config.replicas,
        "sharing-strategy": config.sharing,
        "memory": profile.memory,
        "family": profile.architecture.lower().replace(" ", "-"),
        "compute.major": major,
        "compute.minor": minor,
        "mode": "compute",
        "machine": "Invented",
    }
    driver, cuda = DRIVER_VERSION.split("."), CUDA_DRIVER_VERSION.split(".")
    others = {
        "mps.capable": str(config.sharing == MPS).lower(),
        "mig.capable": str(profile.architecture == "Hopper").lower(),
        "cuda.driver-version.full": DRIVER_VERSION,
        "cuda.driver-version.major": driver[0],
        "cuda.driver-version.minor": driver[1],
        "cuda.driver-version.revision": driver[2],
        "cuda.runtime-version.full": ".".join(cuda[:2]),
        "cuda.runtime-version.major": cuda[0],
        "cuda.runtime-version.minor": cuda[1],
    }
    found = {f"{GPU_RESOURCE}.{name}": str(value) for name, value in of_gpu.items()}
    return found | {f"{LABEL_PREFIX}{name}": value for name, value in others.items()}


def _sanitised(product: str) -> str:
    return "-".join(re.sub(r"[^A-Za-z0-9-_. ]", "", product).split())
