"""Reads an OmniModel, its pods and their pages out of a cluster. What the user may not read is left out, and said."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omni_operator.api import names
from omni_operator.api.enums import ConditionStatus
from omni_operator.api.reasons import ConditionType
from omni_operator.cli.documents import BadInput, Place
from omni_operator.cli.live import Cluster, check_name
from omni_operator.cli.live_model import LiveModel, Manifest, Page, Readings
from omni_operator.cli.live_parse import live_model, page_of, running_since
from omni_operator.kube.client import OMNI_MODELS, PODS, KubeError
from omni_operator.kube.pages import stage_page
from omni_operator.kube.revisions import revisions_of

SUPERVISOR = "supervisor"
"""Name of the supervisor's port in a pod."""
STAGE = "stage"
REFUSED = (ConditionType.ACCEPTED, ConditionStatus.FALSE)
AT_ONCE = 16


async def model_of(cluster: Cluster, name: str) -> Manifest:
    """The OmniModel of that name. Raises BadInput where there is none, naming those that there are."""
    check_name(name, "omnimodel")
    found = await cluster.client.get(OMNI_MODELS, cluster.namespace, name)
    if found is None:
        raise await _not_found(cluster, name)
    return found


async def read_live(cluster: Cluster, name: str, replica: int | None = None) -> LiveModel:
    """One OmniModel with all that is shown of it. Raises KubeError, and BadInput where it or the replica is missing."""
    manifest = await model_of(cluster, name)
    readings, accepted = await asyncio.gather(_readings(cluster, manifest), _last_accepted(cluster, manifest))
    model = live_model(manifest, replace(readings, accepted=accepted))
    if replica is not None and replica not in model.replicas:
        listed = ", ".join(map(str, model.replicas)) or "none"
        raise BadInput(f"has no replica {replica}; there are: {listed}", Place(f"omnimodel {name}"))
    return model


async def read_all(cluster: Cluster, every_namespace: bool) -> list[LiveModel]:
    """All OmniModels, by namespace and name, without a look at their pods. Raises KubeError."""
    found = await cluster.client.list_all(OMNI_MODELS, None if every_namespace else cluster.namespace)
    models = [live_model(item, Readings()) for item in found]
    return sorted(models, key=lambda model: (model.namespace, model.name))


async def _last_accepted(cluster: Cluster, manifest: Manifest) -> Manifest | None:
    """The spec that runs, where the one that is stored is refused. Who may not read history sees the refused one."""
    status = manifest.get("status") or {}
    rows = [row for row in status.get("conditions") or [] if isinstance(row, Mapping)]
    if not status.get("stages") or not any((row.get("type"), row.get("status")) == REFUSED for row in rows):
        return None
    try:
        kept = await revisions_of(cluster.client, dict(manifest))
    except KubeError:
        return None
    return kept[-1].spec if kept else None


async def pods_of(cluster: Cluster, manifest: Manifest) -> list[Manifest]:
    """The pods that belong to an OmniModel: those with its label that it owns. Raises KubeError."""
    meta = manifest["metadata"]
    found = await cluster.client.list_all(PODS, cluster.namespace, labels=f"{names.MODEL_LABEL}={meta['name']}")
    owners = [[owner.get("uid") for owner in pod["metadata"].get("ownerReferences") or []] for pod in found]
    return [pod for pod, uids in zip(found, owners, strict=True) if meta["uid"] in uids]


async def _readings(cluster: Cluster, manifest: Manifest) -> Readings:
    try:
        pods = await pods_of(cluster, manifest)
    except KubeError as error:
        if error.status != 403:
            raise
        seen = "memory as the operator last saw it" if _measured(manifest) else "no measured memory"
        return Readings(notes=(f"No fronts and {seen}: you may not list pods.",))
    pages, refused = await _pages(cluster, pods)
    return Readings(pods, pages, _notes(refused, _measured(manifest)))


async def _pages(cluster: Cluster, pods: list[Manifest]) -> tuple[Mapping[str, Page], Mapping[str, KubeError]]:
    """The pages of stage pods that run, and why others have none."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def look(pod: str, port: int) -> Page | KubeError:
        async with limit:
            try:
                return page_of(await stage_page(cluster.client, cluster.namespace, pod, port))
            except KubeError as error:
                return error

    asked = {
        pod["metadata"]["name"]: port
        for pod in pods
        if pod["metadata"]["labels"].get(names.COMPONENT_LABEL) == STAGE
        and running_since(pod) is not None
        and (port := _supervisor_port(pod)) is not None
    }
    answers = dict(zip(asked, await asyncio.gather(*(look(*item) for item in asked.items())), strict=True))
    pages = {pod: answer for pod, answer in answers.items() if isinstance(answer, Page)}
    return pages, {pod: answer for pod, answer in answers.items() if isinstance(answer, KubeError)}


def _supervisor_port(pod: Manifest) -> int | None:
    ports: list[Mapping[str, Any]] = [p for c in pod["spec"]["containers"] for p in c.get("ports") or []]
    return next((port["containerPort"] for port in ports if port.get("name") == SUPERVISOR), None)


def _measured(manifest: Manifest) -> bool:
    """Whether the operator has measured anything."""
    rows = (manifest.get("status") or {}).get("stages") or []
    return any(isinstance(row, Mapping) and row.get("measuredMemoryBytes") for row in rows)


def _notes(refused: Mapping[str, KubeError], measured: bool) -> tuple[str, ...]:
    if not refused:
        return ()
    if any(error.status == 403 for error in refused.values()):
        if measured:
            return ("Measured memory is what the operator last saw: you may not get pods/proxy.",)
        return ("No measured memory: it is read through the API server, and you may not get pods/proxy.",)
    pod, error = next(iter(refused.items()))
    others = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    words = " ".join((error.message or error.reason).split())[:200]
    return (f"No measured memory of {pod}{others}: its supervisor cannot be reached ({words}).",)


async def _not_found(cluster: Cluster, name: str) -> BadInput:
    """Says whether it is the kind, the namespace or the name that is missing."""
    here = [item["metadata"]["name"] for item in await cluster.client.list_all(OMNI_MODELS, cluster.namespace)]
    place = Place(f"omnimodel {name}")
    message = f"not found in namespace {cluster.namespace}"
    close = difflib.get_close_matches(name, here, n=1)
    if close:
        return BadInput(f"{message}; did you mean {close[0]}?", place)
    try:
        everywhere = await cluster.client.list_all(OMNI_MODELS, None, fields=f"metadata.name={name}")
    except KubeError:  # Most people may look at their own namespace only.
        everywhere = []
    if everywhere:
        return BadInput(f"{message}, but in {everywhere[0]['metadata']['namespace']}: use -n", place)
    return BadInput(f"{message}; there are: {', '.join(sorted(here)[:10]) or 'none'}", place)
