"""The starting order, by the pods' own times: one stage at a time on a GPU, side by side where none is shared."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from e2e.cases.conftest import Manifest, Space, example
from e2e.cases.puppets import NAME, applied, claims, env, pods, puppets, ready, seen_by, since, started

pytestmark = pytest.mark.node

SLOW = env(PUPPET_READY_AFTER="2")
"""So that two starts that overlap cannot lie in one second, which is all that the API's times tell."""


def qwen(stages: dict[str, tuple[list[int], str]], variant: str) -> Manifest:
    """Qwen3-Omni played by puppets, all of them slow."""
    rows = [{"name": name, "gpus": gpus, "gpuMemory": share, "env": SLOW} for name, (gpus, share) in stages.items()]
    manifest = example("qwen3-omni-h100-colocated", stages=rows)
    manifest["metadata"]["name"] = NAME
    manifest["spec"]["model"] |= {"variant": variant, "cache": {"emptyDir": {}}}
    return manifest


def test_five_stages_of_one_gpu_start_one_after_another_the_biggest_first(stage: Space) -> None:
    shares = {"image_encoder": "3%", "audio_encoder": "4%", "thinker": "77%", "talker_ar": "10%", "code2wav": "2%"}
    applied(stage, qwen({name: ([0], share) for name, share in shares.items()}, "speech-colocated"))
    ready(stage)
    found = pods(stage)
    by_start = sorted((f"0-{name.replace('_', '-')}" for name in shares), key=lambda name: started(found[name]))
    assert by_start == ["0-thinker", "0-talker-ar", "0-audio-encoder", "0-image-encoder", "0-code2wav"]
    for before, after in pairwise(by_start):
        assert since(found[after], "PodScheduled") >= since(found[before], "Ready"), f"{after} came before its turn"
        assert (started(found[after]) - started(found[before])).total_seconds() >= 2


def test_stages_of_different_gpus_start_side_by_side(stage: Space) -> None:
    slow = env(PUPPET_READY_AFTER="5")
    applied(stage, puppets([{"name": "thinker", "env": slow}, {"name": "talker", "gpus": [1], "env": slow}]))
    ready(stage)
    found = pods(stage)
    for one, other in (("0-thinker", "0-talker"), ("0-talker", "0-thinker")):
        assert started(found[one]) < since(found[other], "Ready")


def test_a_tensor_parallel_stage_waits_for_all_its_slots_and_sees_them_under_one_daemon(stage: Space) -> None:
    layout = {
        "thinker": ([1, 0], "50%"),
        "talker_ar": ([1], "20%"),
        "code2wav": ([0], "5%"),
        "image_encoder": ([0], "3%"),
        "audio_encoder": ([1], "4%"),
    }
    manifest = qwen(layout, "speech")
    for row, turn in zip(manifest["spec"]["stages"], (2, 3, 1, 0, 0), strict=True):
        row["startOrder"] = turn
    applied(stage, manifest)
    model, found = ready(stage), pods(stage)
    # Before the thinker comes one stage of GPU 1 and, one after another, two of GPU 0; after it the talker.
    for before, after in [
        ("0-image-encoder", "0-code2wav"),
        ("0-code2wav", "0-thinker"),
        ("0-audio-encoder", "0-thinker"),
        ("0-thinker", "0-talker-ar"),
    ]:
        assert since(found[after], "PodScheduled") >= since(found[before], "Ready"), f"{after} came before its turn"
    assert started(found["0-audio-encoder"]) < since(found["0-image-encoder"], "Ready"), "GPU 1 waits for nobody"
    sees_both(stage, model)
    assert limit(found["0-thinker"]) == "0=40779M,1=40779M", "50 % of 81,559 MiB, of each GPU that the process sees"
    assert limit(found["0-talker-ar"]) == "0=16311M"


def sees_both(space: Space, model: Manifest) -> None:
    """The thinker has the GPUs of both slots, in its own order, and one daemon serves them."""
    slots = {row["slot"]: row["uuid"] for row in model["status"]["gpus"]}
    assert len(set(slots.values())) == 2
    rows = {row["name"]: row for row in model["status"]["stages"]}
    assert rows["thinker"]["gpuUuids"] == [slots[1], slots[0]]
    [claim] = claims(space).values()
    [config] = claim["spec"]["devices"]["config"]
    assert config["requests"] == ["slot0", "slot1"]
    daemons = [
        json.loads(seen_by(space, f"{NAME}-0-{pod}", "cat", "/tmp/nvidia-mps/invented-daemon.json"))
        for pod in ("thinker", "talker-ar")
    ]
    assert daemons[0] == daemons[1]
    assert sorted(daemons[0]["uuids"]) == sorted(slots.values())
    files = seen_by(space, f"{NAME}-0-thinker", "ls", "/run/invented-gpus").split()
    assert sorted(name.split("-", 1)[1].removesuffix(".json") for name in files) == sorted(slots.values())


def limit(pod: Manifest) -> str | None:
    """What the pod's processes may pin, by ordinal."""
    values = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    return values.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
