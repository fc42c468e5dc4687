"""Objects of ours that someone else writes again and again: each is put back after ever longer pauses, and it is said
who writes.

Another controller that wants the same field otherwise never gives up, and neither do we: without pauses both would
write as fast as the API server answers. Who wrote last is told by the object's managed fields. Kept in memory alone: a
new leader begins with short pauses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from omni_operator.api import names
from omni_operator.api.reasons import Reason
from omni_operator.planning.drift import Live, Repairs
from omni_operator.planning.layout import Problem
from omni_operator.planning.observed import ChildKind

FIRST_PAUSE = 1.0
"""Seconds between the first time that an object is put back and the second. It doubles."""
LONGEST_PAUSE = 300.0
FORGOTTEN_AFTER = 60.0
"""Seconds beyond twice the pause, after which an object that was left alone counts anew."""
TOLD_FROM = 3
"""An object that was put back so often is fought for: a single edit is nobody's business."""


@dataclass(frozen=True)
class Contest:
    """How often an object was put back, when last, and who had changed it."""

    count: int
    last: float
    who: str

    @property
    def pause(self) -> float:
        """Seconds until it may be put back again."""
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.count - 1, 16))


@dataclass
class Contests:
    """Those of one OmniModel."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[tuple[ChildKind, str], Contest] = field(default_factory=dict)

    def due(self, edited: Repairs, live: Live) -> Repairs:
        """Those repairs that may be made now."""
        return Repairs(
            tuple(c for c in edited.apply if self.may_write(c.kind, c.name, live[c.kind, c.name])),
            tuple(r for r in edited.relabel if self.may_write(r.kind, r.name, live[r.kind, r.name])),
            tuple(r for r in edited.reimage if self.may_write(ChildKind.POD, r.name, live[ChildKind.POD, r.name])),
        )

    def may_write(self, kind: ChildKind, name: str, found: Mapping[str, Any]) -> bool:
        """Whether an object may be put back now; if so, it counts. What we wrote last ourselves is no contest."""
        who = foreign_writer(found)
        if who is None:
            return True
        now, before = self.clock(), self._known.get((kind, name))
        if before is not None and now - before.last < before.pause:
            return False
        lately = before is not None and now - before.last < 2 * before.pause + FORGOTTEN_AFTER
        self._known[kind, name] = Contest(before.count + 1 if before is not None and lately else 1, now, who)
        return True

    def problems(self) -> tuple[Problem, ...]:
        """What is fought for at the moment."""
        return tuple(
            Problem(
                Reason.CONTESTED,
                f"{kind} {name} is changed again and again by {contest.who}, and put back after ever longer pauses.",
                "metadata.name",
                remedy=f"Keep {contest.who} from writing it.",
            )
            for (kind, name), contest in sorted(self._known.items())
            if contest.count >= TOLD_FROM and self._left(contest) > 0
        )

    def look_again(self) -> timedelta | None:
        """When the next pause ends; None: there is none."""
        left = [self._left(contest) for contest in self._known.values()]
        return min((timedelta(seconds=seconds) for seconds in left if seconds > 0), default=None)

    def _left(self, contest: Contest) -> float:
        return contest.last + contest.pause - self.clock()


def foreign_writer(found: Mapping[str, Any]) -> str | None:
    """The field manager that wrote an object after us, or in the same second; None where we wrote last."""
    rows = [row for row in found["metadata"].get("managedFields") or [] if not row.get("subresource")]
    ours = max((row.get("time", "") for row in rows if row.get("manager") == names.MANAGER), default="")
    others = [row for row in rows if row.get("manager") != names.MANAGER and row.get("time", "") >= ours]
    newest = max(others, key=lambda row: str(row.get("time", "")), default=None)
    return str(newest.get("manager") or "someone") if newest is not None else None
