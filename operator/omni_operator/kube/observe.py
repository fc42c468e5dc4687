"""One snapshot of an OmniModel and all it owns, from live reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from omni_operator.api import names
from omni_operator.api.quantities import QuantityError, parse_amount
from omni_operator.kube.client import (
    CLAIMS,
    NETWORK_POLICIES,
    OMNI_MODELS,
    PODS,
    SERVICES,
    SLICES,
    Client,
    Kind,
    KubeError,
    Manifest,
)
from omni_operator.planning.containers import own_status, unhealthy_gpus, waits_for
from omni_operator.planning.drift import Live
from omni_operator.planning.observed import (
    ChildKind,
    Device,
    Observed,
    ObservedClaim,
    ObservedOther,
    ObservedPod,
)
from omni_operator.rendering.claim import daemon_limits
from omni_stage.contract import REPEATED

KINDS: Mapping[ChildKind, Kind] = {
    ChildKind.POD: PODS,
    ChildKind.RESOURCE_CLAIM: CLAIMS,
    ChildKind.SERVICE: SERVICES,
    ChildKind.NETWORK_POLICY: NETWORK_POLICIES,
}


@dataclass(frozen=True)
class Snapshot:
    """The OmniModel and its children as the API has them, and as planning sees them."""

    model: Manifest
    observed: Observed
    live: Live
    named: Mapping[tuple[ChildKind, str], Manifest | None]
    """What stands under the names that children always have, whoever owns it; None where the name is free."""


async def observe(client: Client, namespace: str, name: str) -> Snapshot | None:
    """At most seven calls: the object, pods and claims by label, the three others by name, and the slices of its GPUs.
    None: there is no such OmniModel.

    The three are read by name since they may be someone else's: then nothing must be applied over them.
    """
    fixed = [
        (ChildKind.SERVICE, names.service_name(name)),
        (ChildKind.SERVICE, names.peers_service_name(name)),
        (ChildKind.NETWORK_POLICY, names.network_policy_name(name)),
    ]
    labels = f"{names.MODEL_LABEL}={name}"
    model, pod_items, claim_items, others = await asyncio.gather(
        client.get(OMNI_MODELS, namespace, name),
        client.list_all(PODS, namespace, labels=labels),
        client.list_all(CLAIMS, namespace, labels=labels),
        asyncio.gather(*(client.get(KINDS[kind], namespace, child) for kind, child in fixed)),
    )
    if model is None:
        return None
    uid = model["metadata"]["uid"]
    named = dict(zip(fixed, others, strict=True))
    children = {
        ChildKind.POD: list(owned(pod_items, uid)),
        ChildKind.RESOURCE_CLAIM: list(owned(claim_items, uid)),
        ChildKind.SERVICE: list(owned((named[key] for key in fixed[:2]), uid)),
        ChildKind.NETWORK_POLICY: list(owned((named[key] for key in fixed[2:]), uid)),
    }
    devices = await _devices(client, children[ChildKind.RESOURCE_CLAIM])
    live = {(kind, item["metadata"]["name"]): item for kind, items in children.items() for item in items}
    return Snapshot(model, _observed(children, devices), live, named)


def _observed(owned: Mapping[ChildKind, list[Manifest]], devices: Mapping[tuple[str, str], Manifest]) -> Observed:
    pods = [_pod(pod) for pod in owned[ChildKind.POD]]
    claims = [_claim(claim, devices) for claim in owned[ChildKind.RESOURCE_CLAIM]]
    others = [_other(kind, item) for kind in (ChildKind.SERVICE, ChildKind.NETWORK_POLICY) for item in owned[kind]]
    return Observed(
        {pod.name: pod for pod in pods},
        {claim.name: claim for claim in claims},
        {(other.kind, other.name): other for other in others},
    )


def owned(items: Iterable[Manifest | None], uid: str) -> Iterable[Manifest]:
    """Objects with our labels or names that someone else owns are not ours."""
    for item in items:
        if item is None:
            continue
        owners = item["metadata"].get("ownerReferences") or []
        if any(owner.get("uid") == uid and owner.get("controller") for owner in owners):
            yield item


def _pod(pod: Manifest) -> ObservedPod:
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    container = own_status(pod)
    state = container.get("state") or {}
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    scheduled = conditions.get("PodScheduled") or {}
    gated = any(gate["name"] == names.TURN_GATE for gate in spec.get("schedulingGates") or [])
    created = _time(meta.get("creationTimestamp"))
    started = _time((state.get("running") or {}).get("startedAt"))
    return ObservedPod(
        name=meta["name"],
        uid=meta["uid"],
        replica=_integer(meta, "labels", names.REPLICA_LABEL),
        component=meta["labels"].get(names.COMPONENT_LABEL, ""),
        process=meta["labels"].get(names.PROCESS_LABEL, ""),
        hash=(meta.get("annotations") or {}).get(names.HASH_ANNOTATION, ""),
        generation=_integer(meta, "annotations", names.GENERATION_ANNOTATION),
        claim=next(
            (r.get("resourceClaimName") for r in spec.get("resourceClaims") or [] if r["name"] == names.POD_CLAIM), None
        ),
        plugin=(meta.get("annotations") or {}).get(names.DEVICE_PLUGIN_ANNOTATION),
        node=spec.get("nodeName"),
        phase=status.get("phase", "Pending"),
        gated=gated,
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        deleting="deletionTimestamp" in meta,
        restarts=container.get("restartCount", 0),
        stopped=(state.get("terminated") or {}).get("exitCode") in REPEATED,
        exit_code=ended.get("exitCode"),
        exit_message=_last_line(ended.get("message")),
        address=status.get("podIP") or "",
        waiting=waits_for(pod),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
        started=started,
        ready_since=_time((conditions.get("Ready") or {}).get("lastTransitionTime")),
        bound=_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        created=created,
        turn_since=None if gated else _turn(meta) or created,
        unhealthy=next(unhealthy_gpus(pod), ""),
        disruption=_disruption(conditions.get("DisruptionTarget") or {}),
    )


def _turn(meta: Manifest) -> datetime | None:
    """What we wrote with the opening of its gate; nonsense of someone else's is none."""
    with contextlib.suppress(KeyError, ValueError):
        return _time(meta["annotations"][names.TURN_ANNOTATION])
    return None


def _disruption(condition: Manifest) -> str:
    return condition.get("reason", "") if condition.get("status") == "True" else ""


def _claim(claim: Manifest, devices: Mapping[tuple[str, str], Manifest]) -> ObservedClaim:
    meta = claim["metadata"]
    results = _results(claim)
    return ObservedClaim(
        name=meta["name"],
        uid=meta["uid"],
        replica=_integer(meta, "labels", names.REPLICA_LABEL),
        hash=(meta.get("annotations") or {}).get(names.HASH_ANNOTATION, ""),
        deleting="deletionTimestamp" in meta,
        allocated=bool(results),
        devices={r["request"]: _device(r, devices.get((r["pool"], r["device"]))) for r in results},
        daemon_limits=daemon_limits(claim.get("spec") or {}),
    )


def _other(kind: ChildKind, item: Manifest) -> ObservedOther:
    meta = item["metadata"]
    digest = (meta.get("annotations") or {}).get(names.HASH_ANNOTATION, "")
    return ObservedOther(kind, meta["name"], meta["uid"], digest, "deletionTimestamp" in meta)


def _results(claim: Manifest) -> list[Manifest]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or [])


async def _devices(client: Client, claims: list[Manifest]) -> Mapping[tuple[str, str], Manifest]:
    """Published devices by (pool, device), of the pools that our claims were given. One call; without the right to read
    slices the status lacks the GPUs' names and nothing else."""
    results = [result for claim in claims for result in _results(claim)]
    if not results:
        return {}
    drivers = {result["driver"] for result in results}
    pools = {result["pool"] for result in results}
    fields = f"spec.driver={next(iter(drivers))}" if len(drivers) == 1 else ""
    if fields and len(pools) == 1:
        fields += f",spec.nodeName={next(iter(pools))}"
    try:
        slices = await client.list_all(SLICES, None, fields=fields)
    except KubeError as error:
        if error.status != 403:
            raise
        return {}
    newest: dict[str, int] = {}
    for item in slices:
        pool = item["spec"]["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), pool.get("generation", 0))
    return {
        (item["spec"]["pool"]["name"], device["name"]): {**device, "node": item["spec"].get("nodeName", "")}
        for item in slices
        if item["spec"]["pool"].get("generation", 0) == newest[item["spec"]["pool"]["name"]]
        for device in item["spec"].get("devices") or []
    }


def _device(result: Manifest, published: Manifest | None) -> Device:
    published = published or {}
    attributes = published.get("attributes") or {}
    memory: int | None = None
    with contextlib.suppress(KeyError, QuantityError):
        memory = parse_amount(_qualified(published.get("capacity") or {}, "memory")["value"])
    return Device(
        request=result["request"],
        node=published.get("node") or result["pool"],
        name=result["device"],
        uuid=_text(attributes, "uuid"),
        product=_text(attributes, "productName"),
        memory=memory,
    )


def _qualified(values: Mapping[str, Any], key: str) -> Any:
    """An attribute or capacity by its short name, with or without the driver's domain."""
    for name, value in values.items():
        if name.rsplit("/", 1)[-1] == key:
            return value
    raise KeyError(key)


def _text(attributes: Mapping[str, Any], key: str) -> str | None:
    try:
        return str(_qualified(attributes, key)["string"])
    except KeyError:
        return None


def _integer(meta: Manifest, part: str, key: str) -> int:
    """A number that we wrote ourselves; -1 where someone changed it to nonsense, which then is out of date."""
    try:
        return int((meta.get(part) or {})[key])
    except (KeyError, ValueError):
        return -1


def _last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _time(text: str | None) -> datetime | None:
    """Raises ValueError. A time without a zone is UTC, as all of Kubernetes' times are."""
    if not text:
        return None
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
