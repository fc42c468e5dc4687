"""The pod's file: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from omni_stage.checks import check
from omni_stage.contract import ConfigError, PodConfig, StageConfig

from .pods import stage_config, tiny_config


def full() -> PodConfig:
    """A file in which every field is set."""
    config = stage_config(tiny_config(card_memory_bytes=85520809984), "thinker")
    thinker = replace(
        config.stages[1],
        memory_bytes=64 << 30,
        memory_share="0.78",
        kv_cache_bytes=3 << 30,
        engine_args={"max_running_requests": 16, "nested": {"list": [1, None, "x"]}},
    )
    return replace(config, stages=(config.stages[0], thinker, *config.stages[2:]))


def test_a_file_is_read_back_as_it_was_written() -> None:
    config = full()
    assert PodConfig.from_json(config.to_json()) == config
    assert PodConfig.from_json(config.to_json()).to_json() == config.to_json()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["version"], 2, "version: 2, this image reads version 1"),
        (["surprise"], 1, "surprise: unknown field"),
        (["stages", 0, "surprise"], 1, "stages[0].surprise: unknown field"),
        (["role"], "boss", "role: 'boss' is none of stage, front"),
        (["replica"], "0", "replica: int is needed, got '0'"),
        (["replica"], True, "replica: int is needed, got True"),
        (["stages"], {}, "stages: a list is needed, got {}"),
        (["stages", 1, "slots"], ["a"], "stages[1].slots[0]: int is needed, got 'a'"),
        (["stages", 1, "engine_args"], [], "stages[1].engine_args: an object is needed, got []"),
        (["front"], None, "front: an object is needed, got None"),
    ],
)
def test_what_does_not_fit_is_named(path: list[Any], value: Any, message: str) -> None:
    data = json.loads(full().to_json())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ConfigError) as caught:
        PodConfig.from_json(json.dumps(data))
    assert str(caught.value) == message


def test_a_missing_field_is_named() -> None:
    data = json.loads(full().to_json())
    del data["stages"][2]["host"]
    with pytest.raises(ConfigError, match=r"^stages\[2\].host: missing$"):
        PodConfig.from_json(json.dumps(data))


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        PodConfig.from_json("{")
    with pytest.raises(ConfigError, match="an object is needed"):
        PodConfig.from_json("[]")


def test_a_sensible_file_passes_the_checks() -> None:
    check(full())
    check(tiny_config())


def changed(config: PodConfig, index: int, **changes: Any) -> PodConfig:
    """The file with one stage changed."""
    stages: list[StageConfig] = list(config.stages)
    stages[index] = replace(stages[index], **changes)
    return replace(config, stages=tuple(stages))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(full(), stages=()), "a pipeline has at least one"),
        (replace(full(), process="nobody"), "process: 'nobody' is none of"),
        (changed(full(), 0, name="thinker"), "'thinker' comes 2 times"),
        (changed(full(), 1, slots=(0, 0)), r"slots: \[0, 0\] are not different"),
        (changed(full(), 1, slots=(-1,)), "slots"),
        (changed(full(), 1, tensor_parallel_size=2), "tensor_parallel_size: 2 does not match the slots"),
        (changed(full(), 1, memory_share="78%"), "memory_share: '78%' is no decimal"),
        (changed(full(), 1, memory_share="1.01"), "memory_share"),
        (changed(full(), 1, memory_share="0"), "memory_share"),
        (changed(full(), 1, memory_share="NaN"), "memory_share"),
        (changed(full(), 1, memory_bytes=1), "kv_cache_bytes: 3221225472 is more than memory_bytes, 1"),
        (changed(full(), 1, memory_bytes=-5, kv_cache_bytes=None), "memory_bytes: -5"),
        (changed(full(), 1, relay_port=70000), "70000 at 127.0.0.1 is no TCP port"),
        (changed(full(), 1, relay_port=1, rank_port=1), "2 listeners share port 1"),
        (replace(full(), startup_timeout_seconds=0), "startup_timeout_seconds"),
    ],
)
def test_what_makes_no_sense_is_refused(config: PodConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(config)


def test_stages_of_one_process_share_their_supervisor() -> None:
    config = tiny_config()
    shared = replace(
        config.stages[3], process="talker", supervisor_port=config.stages[2].supervisor_port, host="127.0.0.1"
    )
    check(replace(config, stages=(*config.stages[:3], shared)))
