"""Accepted specs as ControllerRevisions, as StatefulSets keep their templates: history that people read and go back to.
What the operator does never depends on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from omni_operator.api import names
from omni_operator.kube.client import CONTROLLER_REVISIONS, Client, KubeError, Manifest
from omni_operator.kube.observe import owned
from omni_operator.planning.conditions import stamp
from omni_operator.planning.history import DEFAULT_LIMIT, Revision, kept_part, next_history, spec_hash

log = logging.getLogger("omni_operator")


@dataclass(frozen=True)
class Current:
    """The accepted spec's place in history."""

    hash: str
    number: int


@dataclass(frozen=True)
class _Known:
    uid: str
    hash: str
    limit: int
    number: int = 0


class Revisions:
    """Keeps history, and remembers of which OmniModels it is in order, so that it costs nothing while nothing changes.
    A new operator looks once at each: so what someone deleted or wrote into a status is put right."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}
        """By namespace and name."""

    async def keep(self, client: Client, model: Manifest, now: datetime) -> Current | KubeError:
        """The accepted spec is in history, as the newest. What went wrong comes back, and is not raised: nothing else
        may suffer from it."""
        meta, spec = model["metadata"], model["spec"]
        key = meta["namespace"], meta["name"]
        wanted = _Known(meta["uid"], spec_hash(spec), _limit(spec))
        known = self._known.get(key)
        if known is None or replace(known, number=0) != wanted:
            try:
                number = await _bring_up_to_date(client, model, wanted.hash, wanted.limit, now)
            except KubeError as error:
                log.warning("%s/%s: history: %s", *key, error)
                return error
            known = self._known[key] = replace(wanted, number=number)
        return Current(known.hash, known.number)

    def forget(self, namespace: str, name: str) -> None:
        """The OmniModel is gone."""
        self._known.pop((namespace, name), None)


async def revisions_of(client: Client, model: Manifest) -> list[Revision]:
    """What is kept of an OmniModel, the oldest first. Raises KubeError."""
    meta = model["metadata"]
    labels = f"{names.MODEL_LABEL}={meta['name']}"
    found = await client.list_all(CONTROLLER_REVISIONS, meta["namespace"], labels=labels)
    return sorted(_revisions(found, meta["uid"]), key=lambda revision: revision.number)


def _revisions(items: Iterable[Manifest], uid: str) -> Iterable[Revision]:
    """The OmniModel's own. The hash is worked out anew: labels can be edited."""
    for item in owned(items, uid):
        meta = item["metadata"]
        spec = (item.get("data") or {}).get("spec")
        if not isinstance(spec, dict):
            continue
        notes = meta.get("annotations") or {}
        generation = str(notes.get(names.GENERATION_ANNOTATION) or "")
        yield Revision(
            name=meta["name"],
            uid=meta["uid"],
            number=int(item.get("revision") or 0),
            hash=spec_hash(spec),
            spec=spec,
            generation=int(generation) if generation.isascii() and generation.isdigit() else None,
            accepted=str(notes.get(names.ACCEPTED_ANNOTATION) or meta.get("creationTimestamp") or ""),
        )


async def _bring_up_to_date(client: Client, model: Manifest, wanted: str, limit: int, now: datetime) -> int:
    """The accepted spec's number."""
    namespace = model["metadata"]["namespace"]
    step = next_history(await revisions_of(client, model), wanted, limit)
    if step.write:
        # Applied, not created: so `data` is stored as the API server writes it. It compares it byte by byte, and after
        # that refuses every patch of a label as a change of the data.
        await client.apply(CONTROLLER_REVISIONS, _manifest(model, wanted, step.number, now), force=True)
    await asyncio.gather(*(client.delete(CONTROLLER_REVISIONS, namespace, old.name, old.uid) for old in step.remove))
    return step.number


def _manifest(model: Manifest, wanted: str, number: int, now: datetime) -> Manifest:
    meta = model["metadata"]
    return {
        "apiVersion": CONTROLLER_REVISIONS.api_version,
        "kind": "ControllerRevision",
        "metadata": {
            "name": names.revision_name(meta["name"], meta["uid"], wanted),
            "namespace": meta["namespace"],
            "labels": {names.MODEL_LABEL: meta["name"], names.MANAGED_BY_LABEL: names.MANAGER},
            "annotations": {
                names.GENERATION_ANNOTATION: str(meta["generation"]),
                names.ACCEPTED_ANNOTATION: stamp(now),
            },
            "ownerReferences": [names.owner_reference(meta["name"], meta["uid"])],
        },
        "data": {"spec": kept_part(model["spec"])},
        "revision": number,
    }


def _limit(spec: Mapping[str, Any]) -> int:
    value = spec.get("revisionHistoryLimit")
    return value if isinstance(value, int) else DEFAULT_LIMIT
