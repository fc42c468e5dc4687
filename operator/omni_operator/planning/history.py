"""Which accepted specs are kept, and by which number each is known. Pure.

As a StatefulSet keeps its templates: numbers rise, a spec that comes back gets a new number instead of a second entry,
and the oldest go first. How many replicas there are is no part of a spec here, nor how much of its history is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_LIMIT = 10
"""Of StatefulSets and Deployments too."""
NOT_KEPT = frozenset({"replicas", "revisionHistoryLimit"})
"""Fields of a spec that a change of is no revision, and that going back leaves as they are."""


@dataclass(frozen=True)
class Revision:
    """An accepted spec that is kept."""

    name: str
    uid: str
    number: int
    hash: str
    spec: Mapping[str, Any]
    generation: int | None = None
    """Of the OmniModel, when it was accepted last."""
    accepted: str = ""
    """When that was, RFC 3339."""


@dataclass(frozen=True)
class HistoryStep:
    """What to write so that the accepted spec is the newest of those kept."""

    number: int
    """Of the accepted spec."""
    write: bool = False
    """It is not kept yet, or under a lower number."""
    remove: tuple[Revision, ...] = ()


def kept_part(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a spec, as it is stored."""
    return {key: value for key, value in spec.items() if key not in NOT_KEPT}


def restored(spec: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """A spec that was kept, with those fields of the live one that going back leaves alone."""
    return {**spec, **{key: live[key] for key in sorted(NOT_KEPT) if key in live}}


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Equal for specs whose kept parts are equal."""
    text = json.dumps(kept_part(spec), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def next_history(kept: Sequence[Revision], wanted: str, limit: int) -> HistoryStep:
    """`wanted` is the accepted spec's hash. Besides it, the newest `limit` are kept."""
    newest_first = sorted(kept, key=lambda revision: revision.number, reverse=True)
    found = next((revision for revision in newest_first if revision.hash == wanted), None)
    others = [revision for revision in newest_first if revision is not found]
    surplus = tuple(others[max(0, limit) :])
    highest = others[0].number if others else 0
    if found is not None and found.number > highest:
        return HistoryStep(found.number, remove=surplus)
    return HistoryStep(highest + 1, True, surplus)
