"""Which transitions are told by an event, and that none is told twice."""

from __future__ import annotations

from omni_operator.api.enums import ConditionStatus
from omni_operator.api.reasons import ConditionType, Reason
from omni_operator.api.v1alpha1 import Condition, OmniModelStatus
from omni_operator.planning.transitions import is_news, transitions

GOOD = {kind: ("True", Reason(kind)) for kind in ConditionType}
STARTING = {
    "Accepted": ("True", Reason.ACCEPTED),
    "Scheduled": ("False", Reason.WAITING_FOR_TURN),
    "SharingReady": ("False", Reason.STARTING),
    "StagesReady": ("False", Reason.STARTING),
    "Ready": ("False", Reason.STARTING),
}


def status(given: dict[str, tuple[str, Reason]] | dict[ConditionType, tuple[str, Reason]]) -> OmniModelStatus:
    rows = [
        Condition(
            type=str(kind),
            status=ConditionStatus(value),
            reason=reason,
            message=f"{kind} {reason}",
            observed_generation=1,
            last_transition_time="2026-11-29T12:00:00Z",
        )
        for kind, (value, reason) in given.items()
    ]
    return OmniModelStatus(conditions=rows)


def told(before: dict[str, tuple[str, Reason]], after: dict[str, tuple[str, Reason]]) -> list[tuple[str, str]]:
    return [(c.type, c.reason) for c in transitions(status(before) if before else OmniModelStatus(), status(after))]


ALL_GOOD = {str(kind): value for kind, value in GOOD.items()}


def test_a_new_one_is_accepted_and_starts() -> None:
    assert told({}, STARTING) == [("Accepted", "Accepted"), ("Ready", "Starting")]


def test_each_condition_that_becomes_true_is_told() -> None:
    scheduled = STARTING | {"Scheduled": ("True", Reason.SCHEDULED)}
    assert told(STARTING, scheduled) == [("Scheduled", "Scheduled")]
    assert [kind for kind, _ in told(scheduled, ALL_GOOD)] == ["SharingReady", "StagesReady", "Ready"]


def test_nothing_new_is_not_told() -> None:
    assert told(STARTING, STARTING) == []
    assert told(ALL_GOOD, ALL_GOOD) == []


def test_one_trouble_is_one_event() -> None:
    failed = ("False", Reason.STAGE_FAILED)
    assert told(ALL_GOOD, ALL_GOOD | {"StagesReady": failed, "Ready": failed}) == [("Ready", "StageFailed")]
    refused = dict.fromkeys(ALL_GOOD, ("False", Reason.BUDGET_EXCEEDED))
    assert told({}, refused) == [("Ready", "BudgetExceeded")]


def test_trouble_that_is_not_ready_s_own_is_told_beside_it() -> None:
    after = STARTING | {"SharingReady": ("False", Reason.MPS_NOT_ATTACHED)}
    assert told(STARTING, after) == [("SharingReady", "MpsNotAttached")]


def test_what_is_on_the_way_is_no_warning() -> None:
    news = {c.type: is_news(c) for c in status(STARTING).conditions or []}
    assert news == {"Accepted": True, "Scheduled": False, "SharingReady": False, "StagesReady": False, "Ready": False}
