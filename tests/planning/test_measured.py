"""Measured memory: figures that do not matter are not written, and none outlives what it was measured on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omni_operator.api.v1alpha1 import OmniModelStatus
from omni_operator.planning.measured import FIRST_LOOK, PATIENCE, kept, look_again
from omni_operator.planning.observed import ObservedPod, StagePage
from tests.planning.test_conditions import conditions, look, stage
from tests.planning.worlds import World, plan_of

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MIB, GIB = 2**20, 2**30
POD = ObservedPod("p", "u", 0, "stage", "thinker", "h", 1, ready=True, address="10.0.0.1",
                  started=NOW - timedelta(hours=1), ready_since=NOW - timedelta(seconds=5))  # fmt: skip


def torch(size: int) -> StagePage:
    return StagePage(size, "torch")


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        (None, 60 * GIB, 60 * GIB),
        (60 * GIB, 60 * GIB, 60 * GIB),
        (60 * GIB, 63 * GIB, 60 * GIB),
        (60 * GIB, 63 * GIB + 1, 63 * GIB + 1),
        (60 * GIB, 57 * GIB - 1, 57 * GIB - 1),
        (100 * MIB, 164 * MIB, 100 * MIB),
        (100 * MIB, 165 * MIB, 165 * MIB),
    ],
)
def test_a_figure_is_replaced_by_one_that_differs(old: int | None, new: int, result: int) -> None:
    assert kept(torch(new), 1, (old, "torch"))[0] == result


def test_another_kind_of_figure_replaces_it_at_once() -> None:
    assert kept(StagePage(60 * GIB, "resident"), 1, (60 * GIB, "torch")) == (60 * GIB, "resident")


def test_what_is_not_known_changes_nothing() -> None:
    assert kept(None, 1, (GIB, "torch")) == (GIB, "torch")
    assert kept(StagePage(None, "torch"), 1, (GIB, "torch")) == (GIB, "torch")
    assert kept(None, 1, (None, None)) == (None, None)


def test_a_stage_on_several_gpus_has_the_figure_of_each() -> None:
    assert kept(torch(80 * GIB), 2, (None, None)) == (40 * GIB, "torch")
    assert kept(StagePage(80 * GIB, "resident"), 2, (None, None)) == (80 * GIB, "resident"), "the host's is one"


def test_it_is_looked_at_again_soon_after_it_is_ready_and_then_no_more() -> None:
    assert look_again([POD], NOW) == FIRST_LOOK - timedelta(seconds=5)
    assert look_again([replace(POD, ready_since=NOW - FIRST_LOOK)], NOW) is None
    assert look_again([replace(POD, ready_since=NOW + timedelta(hours=1))], NOW) == FIRST_LOOK, "clocks differ"
    assert look_again([replace(POD, address="")], NOW) is None
    waiting = replace(POD, ready=False, started=NOW - timedelta(seconds=10))
    assert look_again([waiting], NOW) == PATIENCE - timedelta(seconds=10)


def test_the_status_has_the_figure_until_the_stage_is_not_ready(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    thinker = world.pods["qwen3-omni-0-thinker"]
    world.pods[thinker.name] = replace(thinker, page=torch(60 * GIB))
    first = look(world, plan)
    assert figure(first) == (60 * GIB, "torch")
    world.pods[thinker.name] = replace(thinker, page=torch(61 * GIB))
    assert look(world, plan, first) == first, "nothing to write"
    world.pods[thinker.name] = thinker
    assert look(world, plan, first) == first, "its page did not come"
    world.pods[thinker.name] = replace(thinker, ready=False, restarts=1, exit_code=73)
    second = look(world, plan, first)
    assert figure(second) == (None, None)
    world.pods[thinker.name] = replace(thinker, restarts=1)
    assert figure(look(world, plan, second)) == (None, None), "of another container"


def figure(found: OmniModelStatus) -> tuple[int | None, str | None]:
    row = next(row for row in found.stages or [] if row.name == "thinker")
    return row.measured_memory_bytes, row.measured_memory_kind


def test_an_engine_that_was_ready_and_hangs_is_told(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    thinker = world.pods["qwen3-omni-0-thinker"]
    silent = StagePage(GIB, "torch", silent=True)
    early = NOW - timedelta(hours=1)
    hung = replace(thinker, ready=False, started=early, ready_since=NOW, page=silent, restarts=1, exit_code=73)
    world.pods["qwen3-omni-0-thinker"] = hung
    state, reason = stage(look(world, plan), "thinker")
    assert state == "Failed"
    assert reason is not None
    assert reason.startswith("StageFailed: its engine was ready and says nothing any more")
    assert conditions(look(world, plan))["Ready"].reason == "StageFailed"
    world.pods["qwen3-omni-0-thinker"] = replace(hung, started=NOW, ready_since=early)
    assert stage(look(world, plan), "thinker")[0] == "Restarting", "that was the container before"


def test_a_stage_that_is_not_attached_says_why_and_sharing_is_not_ready(colocated: dict[str, Any]) -> None:
    world, plan = World(), plan_of(colocated)
    world.settle(plan)
    for name in ("qwen3-omni-0-thinker", "qwen3-omni-0-decode"):
        page = StagePage(None, "resident", "the control daemon is not there")
        world.pods[name] = replace(world.pods[name], page=page, ready=name.endswith("decode"))
    found = look(world, plan)
    reason = "MpsNotAttached: sharing is MPS, but the control daemon is not there"
    assert stage(found, "thinker") == ("Starting", reason)
    assert stage(found, "decode") == ("Ready", None), "it uses no GPU"
    assert conditions(found)["SharingReady"].reason == "MpsNotAttached"
    assert conditions(found)["SharingReady"].message.startswith("qwen3-omni-0-thinker: sharing is MPS, but the control")
    world.pods["qwen3-omni-0-thinker"] = replace(world.pods["qwen3-omni-0-thinker"], ready=True)
    assert conditions(look(world, plan))["SharingReady"].status == "False", "ready, and not attached by its own word"
