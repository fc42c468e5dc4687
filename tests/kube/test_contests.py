"""What another controller writes again and again is put back less and less often, and its name is told."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from omni_operator.kube.contests import LONGEST_PAUSE, Contests, foreign_writer
from omni_operator.planning.observed import ChildKind

SERVICE = (ChildKind.SERVICE, "m")


def row(manager: str, time: str, subresource: str = "") -> dict[str, Any]:
    return {"manager": manager, "time": time, **({"subresource": subresource} if subresource else {})}


def managed(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "m", "managedFields": list(rows)}}


OURS = row("omni-operator", "2026-11-30T01:00:05Z")
FOUGHT = managed(OURS, row("mesh-controller", "2026-11-30T01:00:05Z"))

WRITERS: list[tuple[str, dict[str, Any], str | None]] = [
    ("later", managed(OURS, row("kubectl-edit", "2026-11-30T01:00:09Z")), "kubectl-edit"),
    ("in the same second", FOUGHT, "mesh-controller"),
    ("earlier", managed(row("kubectl-edit", "2026-11-30T01:00:01Z"), OURS), None),
    ("a status", managed(OURS, row("kube-controller-manager", "2026-11-30T01:00:09Z", "status")), None),
    ("nobody", {"metadata": {"name": "m"}}, None),
    ("the newest of two", managed(row("b", "2026-11-30T01:00:08Z"), row("a", "2026-11-30T01:00:09Z"), OURS), "a"),
]


@pytest.mark.parametrize(("found", "who"), [row[1:] for row in WRITERS], ids=[row[0] for row in WRITERS])
def test_who_wrote_after_us(found: dict[str, Any], who: str | None) -> None:
    assert foreign_writer(found) == who


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_in_a_fight_of_an_hour_few_writes_are_made() -> None:
    clock = Clock()
    contests = Contests(clock)
    times = []
    while clock.now < 4600:
        if contests.may_write(*SERVICE, FOUGHT):
            times.append(clock.now - 1000)
        clock.now += 0.1
    assert [round(time) for time in times[:6]] == [0, 1, 3, 7, 15, 31]
    assert len(times) < 25
    assert max(later - earlier for earlier, later in pairwise(times)) <= LONGEST_PAUSE + 0.2


def test_it_is_told_from_the_third_time_for_as_long_as_it_lasts() -> None:
    clock = Clock()
    contests = Contests(clock)
    for told in (0, 0, 1):
        assert contests.may_write(*SERVICE, FOUGHT)
        assert len(contests.problems()) == told
        pause = contests.look_again()
        assert pause is not None
        clock.now += pause.total_seconds()
    assert contests.problems() == (), "left alone for the whole pause"
    assert contests.may_write(*SERVICE, FOUGHT)
    [problem] = contests.problems()
    assert "Service m is changed again and again by mesh-controller" in str(problem)
    assert "Keep mesh-controller from writing it." in str(problem)


def test_what_we_wrote_last_and_other_objects_are_no_part_of_it() -> None:
    contests = Contests(Clock())
    assert contests.may_write(*SERVICE, FOUGHT)
    assert not contests.may_write(*SERVICE, FOUGHT)
    assert contests.may_write(*SERVICE, managed(OURS)), "a new generation's write"
    assert contests.may_write(ChildKind.SERVICE, "other", FOUGHT)


def test_a_calm_while_makes_it_forgotten() -> None:
    clock = Clock()
    contests = Contests(clock)
    for _ in range(5):
        assert contests.may_write(*SERVICE, FOUGHT)
        clock.now += 200
        clock.now += 0
    assert contests.problems() == ()
    assert contests.may_write(*SERVICE, FOUGHT)
    assert contests.problems() == ()
