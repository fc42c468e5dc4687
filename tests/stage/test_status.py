"""When a pod counts as ready."""

from __future__ import annotations

from omni_stage.contract import StageState
from omni_stage.supervisor.status import STALE_SECONDS, Status


class Clock:
    """Time as the test wants it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_ready_engine_that_falls_silent_is_not_ready() -> None:
    clock = Clock()
    status = Status(clock)
    status.update(state=StageState.READY, heard=clock.now)
    assert status.ready()
    clock.now += STALE_SECONDS - 1
    assert status.ready()
    clock.now += 2
    assert not status.ready()
    status.update(heard=clock.now)
    assert status.ready()


def test_since_follows_the_state() -> None:
    clock = Clock()
    status = Status(clock)
    clock.now += 5
    status.update(detail="x")
    assert status.get().since == 1000.0
    status.update(state=StageState.LOADING)
    assert status.get().since == 1005.0
