"""Carries out one step. What the user can fix comes back as a problem; what another try may fix is raised.

New objects never touch what is there already: pods are created, all else is applied only where the name is free or the
object ours. A pod or claim is not changed after that, so a server-side apply on it, which would bring its annotations
up to date while it runs something older, is never made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from omni_operator.api import names
from omni_operator.api.reasons import Reason
from omni_operator.kube.client import OMNI_MODELS, PODS, Client, KubeError, Manifest
from omni_operator.kube.contests import Contests
from omni_operator.kube.observe import KINDS, Snapshot
from omni_operator.planning.conditions import stamp
from omni_operator.planning.drift import Reimage, Relabel
from omni_operator.planning.layout import Problem
from omni_operator.planning.observed import ChildKind, ObservedPod
from omni_operator.planning.rollout import Child, Step

STATUS_MANAGER = f"{names.MANAGER}-status"


async def carry_out(
    client: Client,
    snapshot: Snapshot,
    step: Step,
    now: datetime,
    edited: tuple[Child, ...] = (),
    contests: Contests | None = None,
) -> list[Problem]:
    """Removals, then what is to be there (claims before the pods that name them), then gates. `edited` are children
    that someone else changed, to be applied anew. Of the rest, `contests` says for what it is too early."""
    contests = contests or Contests()
    namespace = snapshot.model["metadata"]["namespace"]
    for removals in (step.remove, step.remove_last):
        await _all(client.delete(KINDS[r.kind], namespace, r.name, r.uid, r.grace) for r in removals)
    first = [(child, contests) for child in step.apply if child.kind is not ChildKind.POD]
    first += [(child, Contests()) for child in edited]
    pods = [(child, contests) for child in step.apply if child.kind is ChildKind.POD]
    for batch in (first, pods):
        found = await _all(_put(client, child, snapshot, paced) for child, paced in batch)
        problems = [problem for problem in found if problem is not None]
        if problems:
            return problems
    await _all(_open_gate(client, namespace, pod, snapshot, now) for pod in step.open_gates)
    return []


async def relabel(client: Client, snapshot: Snapshot, edited: tuple[Relabel, ...]) -> None:
    """Put labels and annotations of pods and claims back, by which everything else finds its way."""
    await _all(_relabel(client, snapshot.model["metadata"]["namespace"], each) for each in edited)


async def reimage(client: Client, snapshot: Snapshot, edited: tuple[Reimage, ...]) -> None:
    """Put images of pods back. One that is gone or changed meanwhile is no error: that is an event."""
    for each in edited:
        path = f"/spec/containers/{each.container}"
        patch: list[Manifest] = [
            {"op": "test", "path": "/metadata/uid", "value": each.uid},
            {"op": "test", "path": f"{path}/name", "value": each.container_name},
            {"op": "replace", "path": f"{path}/image", "value": each.image},
        ]
        await _patch_pod(client, snapshot.model["metadata"]["namespace"], each.name, patch)


async def _all(calls: Any) -> list[Any]:
    """All at once; the first error is raised after all have ended, so that no call is left behind."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)


async def _put(client: Client, child: Child, snapshot: Snapshot, contests: Contests) -> Problem | None:
    try:
        if child.kind is ChildKind.POD:
            return await _create(client, child, contests)
        return await _apply(client, child, snapshot, contests)
    except KubeError as error:
        if not error.user_can_fix:
            raise
        if error.namespace_terminating:
            return Problem(Reason.TERMINATING, "The namespace is being deleted.", "metadata.namespace")
        return Problem(Reason.WRITE_REFUSED, f"The cluster refuses {child.kind} {child.name}: {error.message}", "spec")


async def _create(client: Client, child: Child, contests: Contests) -> Problem | None:
    try:
        await client.create(KINDS[child.kind], child.manifest)
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
        found = await _there(client, child)
        if found is None:
            raise  # it went in between: the next try makes it
        return await _found_again(client, child, found, contests)
    return None


async def _found_again(client: Client, child: Child, found: Mapping[str, Any], contests: Contests) -> Problem | None:
    """A pod or claim that is there, though not among what carries our labels. If it is ours, someone took them off;
    the next pass judges it."""
    if not _owned_by_us(found, child):
        return _name_taken(child, found)
    if not contests.may_write(child.kind, child.name, found):
        return None
    meta = found["metadata"]
    labels = {"labels": child.manifest["metadata"]["labels"]}
    await _relabel(client, meta["namespace"], Relabel(child.kind, child.name, meta["uid"], labels))
    return None


async def _apply(client: Client, child: Child, snapshot: Snapshot, contests: Contests) -> Problem | None:
    """Force is for what is ours already, and the uid keeps it to that very object.

    A claim is applied too, not created: so its opaque parameters are stored as the API server would write them, and not
    as we did. It compares them byte by byte, and after that refuses every patch of a label as a change of the spec.
    """
    key = (child.kind, child.name)
    found = snapshot.named[key] if key in snapshot.named else await _there(client, child)
    if found is None:
        await client.apply(KINDS[child.kind], child.manifest, force=False)
        return None
    if child.kind is ChildKind.RESOURCE_CLAIM:
        return await _found_again(client, child, found, contests)
    if not _owned_by_us(found, child):
        return _name_taken(child, found)
    if not contests.may_write(child.kind, child.name, found):
        return None
    metadata = {**child.manifest["metadata"], "uid": found["metadata"]["uid"]}
    await client.apply(KINDS[child.kind], {**child.manifest, "metadata": metadata}, force=True)
    return None


async def _there(client: Client, child: Child) -> Manifest | None:
    return await client.get(KINDS[child.kind], child.manifest["metadata"]["namespace"], child.name)


def _owned_by_us(found: Mapping[str, Any], child: Child) -> bool:
    owner = _controller(found)
    return owner is not None and owner["uid"] == child.manifest["metadata"]["ownerReferences"][0]["uid"]


def _controller(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    owners = found["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def _name_taken(child: Child, found: Mapping[str, Any]) -> Problem:
    """One that an earlier OmniModel of this name left is on its way out; any other is a person's business."""
    mine = child.manifest["metadata"]["ownerReferences"][0]
    owner = _controller(found) or {}
    if (owner.get("kind"), owner.get("name")) == (mine["kind"], mine["name"]) or (
        "deletionTimestamp" in found["metadata"]
    ):
        message = f"Waits until {child.kind} {child.name} of an earlier object of this name is gone."
        return Problem(Reason.TERMINATING, message, "metadata.name")
    return Problem(
        Reason.NAME_TAKEN,
        f"There is a {child.kind} {child.name} already that does not belong to this OmniModel.",
        "metadata.name",
        remedy="Delete or rename it, or rename the OmniModel.",
    )


async def _relabel(client: Client, namespace: str, edited: Relabel) -> None:
    """One that is gone by now is no error."""
    patch = {"metadata": {"uid": edited.uid, **edited.metadata}}
    try:
        await client.merge_patch(KINDS[edited.kind], namespace, edited.name, patch)
    except KubeError as error:
        if error.status != 404:
            raise


async def _open_gate(client: Client, namespace: str, pod: ObservedPod, snapshot: Snapshot, now: datetime) -> None:
    """Only our gate, wherever it stands, and only of that very pod, which says from then on since when it is its turn.
    One that is gone, or whose gates changed meanwhile, is no error: that is an event, which brings the next pass."""
    gates = snapshot.live[ChildKind.POD, pod.name]["spec"].get("schedulingGates") or []
    index = [gate["name"] for gate in gates].index(names.TURN_GATE)
    patch: list[Manifest] = [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": f"/spec/schedulingGates/{index}/name", "value": names.TURN_GATE},
        {"op": "remove", "path": f"/spec/schedulingGates/{index}"},
        {"op": "add", "path": f"/metadata/annotations/{_pointer(names.TURN_ANNOTATION)}", "value": stamp(now)},
    ]
    await _patch_pod(client, namespace, pod.name, patch)


async def _patch_pod(client: Client, namespace: str, name: str, patch: list[Manifest]) -> None:
    try:
        await client.json_patch(PODS, namespace, name, patch)
    except KubeError as error:
        if error.status not in (404, 422):
            raise


def _pointer(key: str) -> str:
    """A key as part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


async def write_status(client: Client, model: Manifest, status: Manifest) -> bool:
    """The status as a whole, skipped where it says the same already. True: it was written.

    Replaced rather than applied: what someone else wrote into it would stay, and be different at every pass.
    """
    if (model.get("status") or {}) == status:
        return False
    meta = model["metadata"]
    patch: list[Manifest] = [
        {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
        {"op": "add", "path": "/status", "value": status},
    ]
    try:
        await client.json_patch(
            OMNI_MODELS, meta["namespace"], meta["name"], patch, subresource="status", manager=STATUS_MANAGER
        )
    except KubeError as error:
        if error.status != 404:
            raise
    return True
