"""History on a real API server: what was accepted is kept; `kubectl omni rollout` waits for it, and goes back to it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from omni_operator.cli.documents import BadInput
from omni_operator.cli.live import Cluster
from omni_operator.cli.rollout_history import write_spec
from omni_operator.kube.client import KubeError
from tests.api.conftest import Api, operator, wait_for
from tests.api.fault_proxy import FaultProxy
from tests.api.in_process import controller, model, put
from tests.api.test_cli_live import command, env, omni
from tests.api.test_operator import condition, create, declared, play_until_ready

pytestmark = pytest.mark.api

NAME = "tiny-omni"


def numbers(api: Api) -> dict[int, dict[str, Any]]:
    """What is kept: spec by number."""
    return {row["revision"]: row["data"]["spec"] for row in api.get("controllerrevisions")}


def edit(api: Api, **spec: Any) -> None:
    api.call("PATCH", api.path("omnimodels", NAME), {"spec": spec}, "application/merge-patch+json")


def spec(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = api.get("omnimodels", NAME)["spec"]
    return found


def revision(api: Api) -> int | None:
    number: int | None = api.get("omnimodels", NAME)["status"].get("revision")
    return number


def accept(api: Api, number: int) -> None:
    wait_for(f"revision {number}", lambda: revision(api) == number)


def test_each_accepted_spec_is_kept_once_and_going_back_renumbers(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    create(api, declared(NAME, revisionHistoryLimit=2))
    wait_for("the first revision", lambda: condition(api, NAME, "Accepted") and revision(api) == 1)
    first = spec(api)
    edit(api, replicas=2)
    wait_for("two replicas", lambda: len(api.get("resourceclaims")) == 2)
    assert list(numbers(api)) == [1], "replicas are no revision"
    edit(api, startupTimeout="11m")
    accept(api, 2)
    assert numbers(api)[2]["startupTimeout"] == "11m"
    assert "replicas" not in numbers(api)[2]

    nothing = omni(api, "rollout", "undo", NAME, "--to-revision", "7")
    assert (nothing.returncode, nothing.stderr) == (2, f"omnimodel {NAME}: has no revision 7; there are: 1, 2\n")
    dry = omni(api, "rollout", "undo", NAME, "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert dry.stdout == f"omnimodel {NAME} would go back to revision 1:\n  startupTimeout removed\n"
    assert spec(api)["startupTimeout"] == "11m"
    done = omni(api, "rollout", "undo", NAME)
    assert done.returncode == 0, done.stderr
    assert spec(api) == {**first, "replicas": 2}, "replicas stay as they are"
    accept(api, 3)
    assert sorted(numbers(api)) == [2, 3], "a spec that comes back is no second entry"
    again = omni(api, "rollout", "undo", NAME, "--to-revision", "3")
    assert (again.returncode, again.stderr) == (2, f"omnimodel {NAME}: is at revision 3 already\n")

    for i in range(3):
        edit(api, startupTimeout=f"2{i}m")
        accept(api, 4 + i)
    wait_for("two are kept besides the current one", lambda: sorted(numbers(api)) == [4, 5, 6])
    shown = omni(api, "rollout", "history", NAME)
    assert shown.returncode == 0, shown.stderr
    rows = [line.split(maxsplit=2) for line in shown.stdout.splitlines()]
    assert [row[0] for row in rows] == ["REVISION", "4", "5", "6*"]
    assert shown.stdout.splitlines()[-1].endswith("startupTimeout 21m → 22m")
    whole = omni(api, "rollout", "history", NAME, "--revision", "4")
    assert "startupTimeout: 20m" in whole.stdout


def test_after_a_refusal_undo_goes_back_to_the_last_accepted(
    api: Api, running_operator: subprocess.Popen[bytes]
) -> None:
    create(api, declared(NAME))
    play_until_ready(api, NAME)
    accept(api, 1)
    alone = omni(api, "rollout", "undo", NAME)
    assert alone.returncode == 2
    assert "has no accepted spec before revision 1" in alone.stderr
    good = spec(api)
    thinker = next(stage for stage in good["stages"] if stage["name"] == "thinker")
    edit(api, stages=[{**stage, "gpuMemory": "95%"} if stage is thinker else stage for stage in good["stages"]])
    waited = omni(api, "rollout", "status", NAME, "--timeout", "30s")
    assert waited.returncode == 1
    assert "Waiting for generation 2: BudgetExceeded: " in waited.stdout
    assert "is not rolled out." in waited.stderr
    assert "1. Lower gpuMemory of thinker from 95%" in waited.stderr
    assert revision(api) == 1
    shown = omni(api, "rollout", "history", NAME)
    assert "generation 2, is refused (BudgetExceeded): stages[thinker].gpuMemory 60% → 95%." in shown.stdout
    picture = omni(api, "status", NAME).stdout
    assert "80% of 100% given away" in picture, "what runs"
    assert "Shown is what runs, revision 1. Generation 2 is refused" in picture
    done = omni(api, "rollout", "undo", NAME)
    assert done.returncode == 0, done.stderr
    assert "goes back to revision 1:\n  stages[thinker].gpuMemory 95% → 60%\n" in done.stdout
    assert spec(api) == good
    followed = omni(api, "rollout", "status", NAME, "--timeout", "30s")
    assert followed.returncode == 0, followed.stdout
    assert followed.stdout.splitlines()[-1].startswith(f"omnimodel {NAME} generation 3 is rolled out.")
    assert revision(api) == 1, "nothing new was accepted"


def test_status_says_what_is_waited_for_until_all_serve(
    api: Api, tmp_path: Path, running_operator: subprocess.Popen[bytes]
) -> None:
    create(api, declared(NAME))
    wait_for("it is seen", lambda: condition(api, NAME, "Ready"))
    late = omni(api, "rollout", "status", NAME, "--timeout", "1s")
    assert late.returncode == 1
    assert "is not rolled out within the time given" in late.stderr
    output = tmp_path / "out"
    with output.open("w") as sink:
        follow = subprocess.Popen(command(api, "rollout", "status", NAME), stdout=sink, stderr=sink, env=env(api))
        wait_for("a first line", output.read_text)
        play_until_ready(api, NAME)
        assert follow.wait(20) == 0, output.read_text()
    lines = output.read_text().splitlines()
    assert lines[0].startswith("Waiting for generation 1: ")
    assert lines[-1] == f"omnimodel {NAME} generation 1 is rolled out. Serving on 1 of 1 replicas."
    assert len(lines) == len(set(lines)), "each line once"


def test_what_is_edited_heals(api: Api, tmp_path: Path) -> None:
    with operator(api, tmp_path / "log"):
        create(api, declared(NAME))
        wait_for("the first revision", lambda: condition(api, NAME, "Accepted") and revision(api) == 1)
        api.patch_status("omnimodels", NAME, {"revision": 42})
        accept(api, 1)
        api.patch_status("omnimodels", NAME, {"revision": 42, "revisionHash": "0123456789"})
        accept(api, 1)
        (kept,) = api.get("controllerrevisions")
        api.must("label", "controllerrevision", kept["metadata"]["name"], "omnimodel.io/name-")
        edit(api, startupTimeout="11m")
        wait_for("it sees none with its label", lambda: len(api.get("controllerrevisions")) == 2)
        edit(api, startupTimeout=None)
        accept(api, 2)  # and finds the first again, by its name
        assert sorted(numbers(api)) == [1, 2]
    api.must("delete", "controllerrevisions", "--all")
    with operator(api, tmp_path / "log"):
        wait_for("a new operator looks once", lambda: list(numbers(api)) == [1])
        accept(api, 1)


def test_one_that_belongs_to_another_is_not_touched(api: Api, running_operator: subprocess.Popen[bytes]) -> None:
    labels = {"omnimodel.io/name": NAME}
    foreign = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": "foreign", "labels": labels},
        "data": {"spec": {"x": 1}},
        "revision": 9,
    }
    create(api, foreign)
    create(api, declared(NAME, revisionHistoryLimit=0))
    wait_for("the first revision", lambda: condition(api, NAME, "Accepted") and revision(api) == 1)
    edit(api, startupTimeout="11m")
    accept(api, 2)
    wait_for("its own one went", lambda: sorted(numbers(api)) == [2, 9])


async def test_undo_writes_over_nothing_but_the_spec_that_it_looked_at(api: Api, faulty: FaultProxy) -> None:
    put(api, model(NAME))
    seen = api.get("omnimodels", NAME)
    edit(api, startupTimeout="11m")
    async with controller(faulty, api.namespace) as running:
        cluster = Cluster(running.client, api.namespace, faulty.url)
        with pytest.raises(BadInput, match="was changed meanwhile; look again, and try again"):
            await write_spec(cluster, seen, seen["spec"] | {"image": "b"}, dry_run=False)
        assert spec(api)["startupTimeout"] == "11m"
        assert "image" not in spec(api)
        await write_spec(cluster, api.get("omnimodels", NAME), seen["spec"] | {"image": "b"}, dry_run=True)
        assert "image" not in spec(api), "a dry run"
        with pytest.raises(KubeError, match=r"spec\.model"):
            await write_spec(cluster, api.get("omnimodels", NAME), {"model": {}}, dry_run=False)
