"""Which changes of the conditions a person is told of by an event. Pure."""

from __future__ import annotations

from omni_operator.api.reasons import ON_THE_WAY, ConditionType
from omni_operator.api.v1alpha1 import Condition, OmniModelStatus

ALWAYS_TOLD = (ConditionType.ACCEPTED, ConditionType.READY)


def transitions(previous: OmniModelStatus, wanted: OmniModelStatus) -> list[Condition]:
    """Conditions whose status or reason changed. Each reason once: of several that have it the last, which says most
    (it is Ready). That a new OmniModel is not scheduled yet, and the like, is no news."""
    before = {condition.type: (condition.status, condition.reason) for condition in previous.conditions or []}
    changed = [c for c in wanted.conditions or [] if before.get(c.type) != (c.status, c.reason)]
    news = [c for c in changed if c.type in ALWAYS_TOLD or c.type in before or is_news(c)]
    return list({condition.reason: condition for condition in news}.values())


def is_news(condition: Condition) -> bool:
    """Whether it is good, or something is wrong: not just on the way."""
    return condition.status == "True" or condition.reason not in ON_THE_WAY
