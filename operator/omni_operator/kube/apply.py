"""Carries out one step. What the user can fix comes back as a problem; what another try may fix is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from omni_operator.api import names
from omni_operator.api.reasons import Reason
from omni_operator.kube.client import OMNI_MODELS, PODS, Client, KubeError, Manifest
from omni_operator.kube.observe import KINDS
from omni_operator.planning.layout import Problem
from omni_operator.planning.observed import ChildKind, Observed, ObservedPod
from omni_operator.planning.rollout import Child, Step

STATUS_MANAGER = f"{names.MANAGER}-status"


async def carry_out(client: Client, namespace: str, step: Step, observed: Observed) -> list[Problem]:
    """Removals, then applications (claims before the pods that name them), then gates."""
    await _all(client.delete(KINDS[r.kind], namespace, r.name, r.uid) for r in step.remove)
    first = [child for child in step.apply if child.kind is not ChildKind.POD]
    pods = [child for child in step.apply if child.kind is ChildKind.POD]
    problems: list[Problem] = []
    for batch in (first, pods):
        found = await _all(_apply(client, child, observed) for child in batch)
        problems += [problem for problem in found if problem is not None]
        if problems:
            return problems
    await _all(_open_gate(client, namespace, pod) for pod in step.open_gates)
    return problems


async def _all(calls: Any) -> list[Any]:
    """All at once; the first error is raised after all have ended, so that no call is left behind."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)


async def _apply(client: Client, child: Child, observed: Observed) -> Problem | None:
    """Force is for what is ours already; a new object must not take over one that someone else made."""
    ours = (child.kind, child.name) in observed.others
    try:
        answer = await client.apply(KINDS[child.kind], child.manifest, force=ours)
    except KubeError as error:
        if error.status == 409 and not ours:
            return _name_taken(child)
        if error.user_can_fix:
            if error.status == 422 and await _exists_already(client, child):
                return _name_taken(child)
            return Problem(
                Reason.WRITE_REFUSED,
                f"The cluster refuses {child.kind} {child.name}: {error.message}",
                "spec",
            )
        raise
    return None if _owned_by_us(answer, child) else _name_taken(child)


async def _exists_already(client: Client, child: Child) -> bool:
    found = await client.get(KINDS[child.kind], child.manifest["metadata"]["namespace"], child.name)
    return found is not None and not _owned_by_us(found, child)


def _owned_by_us(found: Mapping[str, Any], child: Child) -> bool:
    owners = found.get("metadata", {}).get("ownerReferences") or []
    return [owner.get("uid") for owner in owners] == [child.manifest["metadata"]["ownerReferences"][0]["uid"]]


def _name_taken(child: Child) -> Problem:
    return Problem(
        Reason.NAME_TAKEN,
        f"There is a {child.kind} {child.name} already that does not belong to this OmniModel.",
        "metadata.name",
        remedy="Delete or rename it, or rename the OmniModel.",
    )


async def _open_gate(client: Client, namespace: str, pod: ObservedPod) -> None:
    """Only our gate, and only of that very pod; one that is gone or was opened meanwhile is no error."""
    patch: list[Manifest] = [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": names.TURN_GATE},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]
    try:
        await client.json_patch(PODS, namespace, pod.name, patch)
    except KubeError as error:
        if error.status not in (404, 409, 422):
            raise


async def write_status(client: Client, model: Manifest, status: Manifest) -> bool:
    """Server-side apply of the status, skipped where it says the same already. True: it was written."""
    if (model.get("status") or {}) == status:
        return False
    meta = model["metadata"]
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
        "status": status,
    }
    try:
        await client.apply(OMNI_MODELS, manifest, force=True, subresource="status", manager=STATUS_MANAGER)
    except KubeError as error:
        if error.status != 404:
            raise
    return True
