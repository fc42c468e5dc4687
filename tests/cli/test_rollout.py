"""`kubectl omni rollout`: what it says, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from omni_operator.cli import main
from omni_operator.cli.live_model import Readings
from omni_operator.cli.live_parse import live_model
from omni_operator.cli.paint import Canvas
from omni_operator.cli.rollout_history import history_lines
from omni_operator.cli.rollout_status import failed, progress
from omni_operator.cli.spec_changes import changes, in_short
from omni_operator.planning.history import Revision, kept_part, spec_hash
from tests.cli.live_models import model, stored

NOW = datetime(2026, 11, 29, 12, 10, tzinfo=UTC)
STAGES = [{"name": "thinker", "gpuMemory": "78%"}, {"name": "talker", "gpus": [0]}]
BEFORE = {"model": {"id": "m"}, "stages": STAGES, "image": "a"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"image": "b"}, ["image a → b"]),
        ({"startupTimeout": "10m"}, ["startupTimeout set to 10m"]),
        (
            {"gpus": {"card": "h200", "sharing": {"multiUser": True}}},
            ["gpus.card set to h200", "gpus.sharing.multiUser set to true"],
        ),
        ({"model": {"id": "m", "variant": "text"}}, ["model.variant set to text"]),
        (
            {"stages": [{"name": "talker", "gpus": [0, 1]}, {"name": "thinker", "gpuMemory": "80%"}]},
            ["stages[talker].gpus [0] → [0, 1]", "stages[thinker].gpuMemory 78% → 80%"],
        ),
        (
            {"stages": [{"name": "thinker", "gpuMemory": "78%", "engineArgs": {"max_running_requests": 16}}]},
            ["stages[thinker].engineArgs.max_running_requests set to 16", "stages[talker] removed"],
        ),
        ({"stages": [*STAGES, {"name": "decode"}]}, ["stages[decode] added"]),
        ({"stages": []}, ["stages[thinker] removed", "stages[talker] removed"]),
        ({"image": "x" * 99}, [f"image a → {'x' * 39}…"]),
        ({"image": "\x1b[2J"}, ["image a → \N{REPLACEMENT CHARACTER}[2J"]),
    ],
    ids=str,
)
def test_changes_are_told_in_the_words_of_set(change: dict[str, Any], words: list[str]) -> None:
    assert changes(BEFORE, {**BEFORE, **change}) == words


def test_in_short() -> None:
    assert in_short([]) == "nothing"
    assert in_short(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"


def revision(number: int, spec: dict[str, Any], generation: int | None, accepted: str) -> Revision:
    return Revision(f"r{number}", "u", number, spec_hash(spec), kept_part(spec), generation, accepted)


def shown(manifest: dict[str, Any], kept: list[Revision]) -> str:
    return Canvas(100).draw(history_lines(live_model(manifest, Readings()), manifest, kept, NOW, Canvas(100)))


def history(spec: dict[str, Any]) -> list[Revision]:
    old = {**spec, "image": "stage:1"}
    return [
        revision(1, old, 1, "2026-11-28T12:10:00Z"),
        revision(2, {**old, "startupTimeout": "10m"}, 3, "2026-11-29T09:10:00Z"),
        revision(4, spec, 7, "2026-11-29T12:05:00Z"),
    ]


def test_history_says_what_each_changed_and_marks_the_current_one() -> None:
    manifest = stored({}, ("True", "Ready", ""))
    assert (
        shown(manifest, history(manifest["spec"]))
        == """\
  REVISION  GENERATION  ACCEPTED  CHANGE
  1         1           1d ago    the oldest that is kept
  2         3           3h ago    startupTimeout set to 10m
  4*        7           5m ago    image removed; startupTimeout removed
"""
    )


def test_a_spec_that_is_not_in_it_is_told_and_the_way_back() -> None:
    manifest = stored({}, ("False", "BudgetExceeded", "GPU 0 is overbooked."))
    kept = history(manifest["spec"])
    manifest["spec"]["image"] = "stage:3"
    assert "generation 1, was not looked at yet: image set to stage:3." in shown(manifest, kept)
    accepted = manifest["status"]["conditions"][0]
    accepted.update(status="False", reason="BudgetExceeded")
    text = shown(manifest, kept)
    assert "The spec as it is now, generation 1, is refused (BudgetExceeded): image set to stage:3." in text
    assert "kubectl omni rollout undo qwen3-omni goes back to revision 4." in text
    assert "*" not in text


def test_nothing_accepted_yet() -> None:
    assert shown(stored({}, ("False", "Starting", "")), []) == "qwen3-omni has no accepted spec yet.\n"


def test_what_someone_wrote_into_a_revision_breaks_nothing() -> None:
    manifest = stored({}, ("True", "Ready", ""))
    odd = replace(
        history(manifest["spec"])[0], generation=None, accepted="yesterday", spec={"stages": "none", "x": [1]}
    )
    assert "1         -           -         the oldest that is kept" in shown(manifest, [odd])


def test_status_waits_for_the_generation_and_gives_up_only_for_good() -> None:
    ready = model()
    assert progress(ready) == "omnimodel qwen3-omni generation 1 is rolled out. Serving on 1 of 1 replicas."
    unseen = model(observed_generation=0)
    assert not failed(unseen)
    assert progress(unseen).startswith("Waiting for generation 1: NotSeen: the operator has seen generation 0")
    starting = model(ready=("False", "Starting", "6 of 7 stages are ready."))
    assert not failed(starting)
    assert progress(starting) == "Waiting for generation 1: Starting: 6 of 7 stages are ready."
    for reason, end in (("BadConfig", True), ("OutOfBudget", True), ("StageFailed", False), ("GpuFault", False)):
        assert failed(model(ready=("False", reason, "it broke"))) is end


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("rollout", "undo", "m", "--revision", "2"), "--revision: is for rollout history, not for rollout undo"),
        (("rollout", "history", "m", "--dry-run"), "--dry-run: is for rollout undo, not for rollout history"),
        (("rollout", "status", "m", "--timeout", "soon"), "--timeout: 'soon' is not a duration such as 45m or 1h30m"),
        (("rollout", "undo", "m", "--to-revision", "0"), "'0' is not a whole number above 0"),
        (("rollout", "pause", "m"), "invalid choice: 'pause'"),
        (("rollout", "undo", "A b"), "is not a name of Kubernetes"),
    ],
)
def test_bad_arguments(command: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(command)) == 2
    assert words in capsys.readouterr().err
