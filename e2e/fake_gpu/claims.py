"""PURE: which configuration applies to which device of a claim, and which MPS daemons follow from it.

Follows `getConfigResultsMap` of `cmd/gpu-kubelet-plugin/device_state.go`: entries of the claim win over the class's,
later ones over earlier ones, and an entry without requests covers all. Devices that end under one entry form a group,
and a group under MPS has one control daemon.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.fake_gpu.gpu_config import MPS, Driver, Mps, Refused, Sharing, decode, judge, memory_limits
from e2e.fake_gpu.profiles import Gpu
from e2e.fake_gpu.slices import DRIVER


@dataclass(frozen=True)
class Allocated:
    """One device that the scheduler gave to one request."""

    request: str
    pool: str
    gpu: Gpu


@dataclass(frozen=True)
class Daemon:
    """An MPS control daemon: its devices and what it was told. Its id is made as the driver makes it."""

    id: str
    uuids: Sequence[str]
    limits: Mapping[str, str]
    active_threads: int | None
    multi_user: bool


@dataclass(frozen=True)
class Group:
    """The devices under one config entry, and their daemon if they are shared through MPS."""

    devices: Sequence[Allocated]
    sharing: Sharing
    daemon: Daemon | None


def groups_of(claim: Mapping[str, Any], gpus: Sequence[Gpu], driver: Driver) -> list[Group]:
    """The claim's groups in the order of its results. Raises Refused where the driver would."""
    uid = claim["metadata"]["uid"]
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise Refused("claim not yet allocated")
    entries = [((), Sharing()), *_entries(allocation["devices"].get("config") or [])]
    members: dict[int, list[Allocated]] = {}
    for allocated in _allocated(allocation["devices"]["results"], gpus):
        members.setdefault(_entry_of(allocated, entries), []).append(allocated)
    groups = []
    for index, devices in members.items():
        sharing = entries[index][1]
        assert sharing is not None, "_entry_of chooses no other"
        judge(sharing, driver, [each.request for each in devices], uid)
        groups.append(Group(devices, sharing, _daemon(uid, devices, sharing)))
    return groups


def collision(groups: Sequence[Group], pods: Iterable[Mapping[str, Any]], claim_name: str) -> str | None:
    """The complaint about the first container that would see two control daemons: the later mount would win."""
    daemon_of = {each.request: group.daemon.id for group in groups if group.daemon for each in group.devices}
    for pod in pods:
        for container, requests in _picks(pod, claim_name):
            seen = daemon_of if requests is None else {name: daemon_of[name] for name in requests if name in daemon_of}
            if len(set(seen.values())) > 1:
                where = f"container {container!r} of pod {pod['metadata']['name']!r}"
                return (
                    f"{where} would see {len(set(seen.values()))} MPS control daemons (requests "
                    f"{', '.join(sorted(seen))}), and only one can be at /tmp/nvidia-mps: put all requests that one "
                    "container sees under one config entry"
                )
    return None


def _picks(pod: Mapping[str, Any], claim_name: str) -> Iterable[tuple[str, list[str] | None]]:
    """(container, requests of the claim that it picks, None for all) of every container that uses the claim."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    made = {each["name"]: each.get("resourceClaimName") for each in statuses}
    for reference in pod["spec"].get("resourceClaims") or []:
        if (reference.get("resourceClaimName") or made.get(reference["name"])) != claim_name:
            continue
        for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
            uses = (container.get("resources") or {}).get("claims") or []
            requests = [use.get("request") for use in uses if use["name"] == reference["name"]]
            if requests:
                yield container["name"], None if None in requests else [str(each) for each in requests]


def _allocated(results: Iterable[Mapping[str, Any]], gpus: Sequence[Gpu]) -> Iterable[Allocated]:
    by_name = {gpu.name: gpu for gpu in gpus}
    for result in results:
        if result["driver"] != DRIVER:
            continue
        if result["device"] not in by_name:
            raise Refused(f'allocatable not found for device "{result["device"]}"')
        yield Allocated(result["request"], result["pool"], by_name[result["device"]])


def _entries(configs: Sequence[Mapping[str, Any]]) -> list[tuple[tuple[str, ...], Sharing | None]]:
    """(requests, sharing) of the driver's own entries, lowest precedence first; None for devices other than GPUs."""
    entries = []
    for source in ("FromClass", "FromClaim"):
        for config in configs:
            if config["source"] != source:
                continue
            opaque = config.get("opaque")
            if not opaque:
                raise Refused("only opaque parameters are supported by this driver")
            if opaque["driver"] == DRIVER:
                entries.append((tuple(config.get("requests") or ()), decode(opaque["parameters"])))
    return entries


def _entry_of(allocated: Allocated, entries: Sequence[tuple[tuple[str, ...], Sharing | None]]) -> int:
    for index in reversed(range(len(entries))):
        requests, sharing = entries[index]
        if allocated.request in requests:
            if sharing is None:
                raise Refused(
                    f'cannot apply a configuration of another kind to device "{allocated.gpu.name}" of type "gpu" '
                    f"(request: {allocated.request})"
                )
            return index
        if not requests and sharing is not None:
            return index
    raise AssertionError("the first entry covers every device")


def _daemon(claim_uid: str, devices: Sequence[Allocated], sharing: Sharing) -> Daemon | None:
    if sharing.strategy != MPS:
        return None
    mps = sharing.mps or Mps()
    uuids = sorted({each.gpu.uuid for each in devices})
    digest = hashlib.sha256(",".join(uuids).encode()).hexdigest()[:5]
    return Daemon(f"{claim_uid}-{digest}", uuids, memory_limits(mps, uuids), mps.active_threads, mps.multi_user)
