"""The main job: a pipeline starts on one shared GPU, answers, survives its operator, and goes without a trace."""

from __future__ import annotations

import pytest

from e2e.cases.conftest import CHILDREN, Space, example
from e2e.demo import complete, stream
from e2e.deploy import NAMESPACE, forwarded

pytestmark = pytest.mark.node

NAME = "tiny-omni"
TRAIL = "[preprocessing > thinker > talker > decode] "
"""Each stage adds its name to what it hands on."""


@pytest.fixture(scope="module")
def tiny(module_space: Space) -> Space:
    module_space.apply(example(NAME))
    module_space.wait_ready(NAME)
    return module_space


def test_every_stage_and_the_front_run_and_every_condition_is_true(tiny: Space) -> None:
    phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in tiny.pods()}
    assert phases == dict.fromkeys(
        [f"{NAME}-0-{stage}" for stage in ("preprocessing", "thinker", "talker", "decode")] + [f"{NAME}-0--front"],
        "Running",
    )
    conditions = {row["type"]: row["status"] for row in tiny.model(NAME)["status"]["conditions"]}
    assert conditions == dict.fromkeys(("Accepted", "Scheduled", "SharingReady", "StagesReady", "Ready"), "True")


def test_both_gpu_stages_have_the_same_gpu_and_the_container_sees_it(tiny: Space) -> None:
    stages = tiny.stages(NAME)
    [uuid] = stages["thinker"]["gpuUuids"]
    assert stages["talker"]["gpuUuids"] == [uuid]
    [slot] = tiny.model(NAME)["status"]["gpus"]
    assert (slot["uuid"], slot["givenAway"], slot["stages"]) == (uuid, "80%", ["thinker", "talker"])
    for stage in ("thinker", "talker"):
        seen = tiny.on.kubectl("exec", "-n", tiny.name, f"{NAME}-0-{stage}", "--", "printenv", "NVIDIA_VISIBLE_DEVICES")
        assert seen.strip() == uuid
    seen = tiny.on.kubectl(
        "exec", "-n", tiny.name, f"{NAME}-0-decode", "--", "sh", "-c", "ls /run/invented-gpus || true"
    )
    assert uuid not in seen, "a stage on the CPU gets no GPU"


def test_each_stage_may_pin_its_share_and_no_more(tiny: Space) -> None:
    limits = {
        pod["metadata"]["name"]: {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
        for pod in tiny.pods()
    }
    assert limits[f"{NAME}-0-thinker"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=48935M", "60 % of 81,559 MiB"
    assert limits[f"{NAME}-0-talker"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=16311M", "20 % of 81,559 MiB"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in limits[f"{NAME}-0-decode"]


def test_the_second_gpu_stage_started_after_the_first_was_ready(tiny: Space) -> None:
    pods = {pod["metadata"]["name"]: pod for pod in tiny.pods()}

    def since(pod: str, condition: str) -> str:
        rows = pods[f"{NAME}-0-{pod}"]["status"]["conditions"]
        return str(next(row["lastTransitionTime"] for row in rows if row["type"] == condition))

    assert since("talker", "PodScheduled") >= since("thinker", "Ready")


def test_an_answer_came_through_all_stages(tiny: Space) -> None:
    with forwarded(tiny.on, tiny.name, NAME, 8000) as url:
        text = complete(url, "hello")["choices"][0]["message"]["content"]
    assert text.startswith(TRAIL)
    assert len(text) > len(TRAIL)


def test_a_streamed_answer_came_through_all_stages_in_several_chunks(tiny: Space) -> None:
    with forwarded(tiny.on, tiny.name, NAME, 8000) as url:
        deltas = [chunk["choices"][0]["delta"].get("content") for chunk in stream(url, "hello")]
        whole = complete(url, "hello")["choices"][0]["message"]["content"]
    words = [delta for delta in deltas if delta]
    assert len(words) > 5
    assert "".join(words) == whole
    assert whole.startswith(TRAIL)


def test_the_operator_may_die_without_a_pod_of_the_model_restarting(tiny: Space) -> None:
    before = {pod["metadata"]["uid"] for pod in tiny.pods()}
    tiny.on.kubectl("delete", "pod", "-n", NAMESPACE, "--all", "--grace-period=0", "--force")
    tiny.on.kubectl("rollout", "status", "deployment/omni-operator", "-n", NAMESPACE, "--timeout=90s")
    tiny.on.kubectl("delete", "service", "-n", tiny.name, NAME)
    tiny.wait("the new operator brings the Service back", lambda: NAME in tiny.children()["services"], 60)
    assert {pod["metadata"]["uid"] for pod in tiny.pods()} == before
    assert tiny.condition(NAME, "Ready")["status"] == "True"


KILL_THE_ENGINE = """
import os, pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    pid = int(path.parent.name)
    if pid != os.getpid() and b"omni_stage.engine" in path.read_bytes():
        os.kill(pid, 9)
"""


def restarts(space: Space) -> dict[str, int]:
    return {name: row["restarts"] for name, row in space.stages(NAME).items()}


def test_a_stage_whose_engine_dies_comes_back_in_place_and_no_neighbour_restarts(tiny: Space) -> None:
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in tiny.pods()}
    tiny.on.kubectl("exec", "-n", tiny.name, f"{NAME}-0-talker", "--", "python", "-c", KILL_THE_ENGINE)
    tiny.wait("the restart is seen", lambda: restarts(tiny)["talker"] == 1, 60)
    tiny.wait_ready(NAME)
    assert restarts(tiny) == {"preprocessing": 0, "thinker": 0, "talker": 1, "decode": 0}
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in tiny.pods()} == before
    with forwarded(tiny.on, tiny.name, NAME, 8000) as url:
        assert complete(url, "hello")["choices"][0]["message"]["content"].startswith(TRAIL)


def test_a_changed_argument_restarts_its_own_stage_only(tiny: Space) -> None:
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in tiny.pods()}
    stages = [
        {"name": "thinker", "gpus": [0], "gpuMemory": "60%"},
        {"name": "talker", "gpus": [0], "gpuMemory": "20%", "env": [{"name": "A", "value": "b"}]},
    ]
    tiny.apply(example(NAME, stages=stages))
    generation = tiny.model(NAME)["metadata"]["generation"]

    def done() -> bool:
        ready = tiny.condition(NAME, "Ready")
        return bool(ready["status"] == "True" and ready["observedGeneration"] == generation)

    tiny.wait("the new generation is Ready", done, 300)
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in tiny.pods()}
    assert {name for name in after if after[name] != before.get(name)} == {f"{NAME}-0-talker"}


def test_a_refused_change_leaves_the_old_generation_serving(tiny: Space) -> None:
    before = {pod["metadata"]["uid"] for pod in tiny.pods()}
    tiny.apply(example(NAME, stages=[{"name": "thinker", "gpuMemory": "90%"}, {"name": "talker", "gpuMemory": "20%"}]))
    refused = tiny.wait("the refusal", lambda: (c := tiny.condition(NAME, "Accepted"))["status"] == "False" and c, 30)
    assert refused["reason"] == "BudgetExceeded"
    assert "is left running" in tiny.condition(NAME, "Ready")["message"]
    assert {pod["metadata"]["uid"] for pod in tiny.pods()} == before
    with forwarded(tiny.on, tiny.name, NAME, 8000) as url:
        assert complete(url, "hello")["choices"][0]["message"]["content"].startswith(TRAIL)


def test_deleting_the_omnimodel_leaves_nothing(tiny: Space) -> None:
    tiny.on.kubectl("delete", "omnimodel", "-n", tiny.name, NAME, "--timeout=60s")
    tiny.wait("nothing is left", lambda: tiny.children() == {kind: [] for kind in CHILDREN}, 120)
