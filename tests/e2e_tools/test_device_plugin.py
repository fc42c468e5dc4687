"""What the stand-in device plugin offers, allocates and labels, as NVIDIA's does."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from e2e.fake_gpu.device_plugin import (
    DevicePluginConfig,
    Invalid,
    allocate,
    check,
    daemon_of,
    device_ids,
    labels,
    preferred,
)
from e2e.fake_gpu.plugin_options import add_plugin_options, plugin_config, written
from e2e.fake_gpu.profiles import gpus_of

GPUS = gpus_of("node", 2, "h100-80gb")
SLICED = DevicePluginConfig("time-slicing", 4)
SHARED = DevicePluginConfig("mps", 10)


def test_a_whole_gpu_is_named_by_its_uuid_and_a_replica_by_uuid_and_number() -> None:
    assert device_ids(DevicePluginConfig(), GPUS) == [gpu.uuid for gpu in GPUS]
    assert device_ids(SLICED, GPUS[:1]) == [f"{GPUS[0].uuid}::{number}" for number in range(4)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mps", 1), "number of replicas must be >= 2"),
        (("mps", 49), "maximum allowed replicas exceeded: 49 > 48"),
        (("time-slicing", 0), "number of replicas must be >= 2"),
        (("none", 2), "need a sharing"),
        (("vgpu", 2), "unknown sharing"),
    ],
)
def test_the_plugin_does_not_start_on_a_bad_configuration(arguments: tuple[str, int], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        DevicePluginConfig(*arguments)
    assert DevicePluginConfig("time-slicing", 49).replicas == 49


@pytest.mark.parametrize("config", [SHARED, DevicePluginConfig("time-slicing", 4, fail_above_one=True)])
def test_two_replicas_are_refused_under_mps_and_where_it_is_said(config: DevicePluginConfig) -> None:
    devices = device_ids(config, GPUS)
    check(config, devices, devices[:1])
    with pytest.raises(Invalid) as raised:
        check(config, devices, devices[:2])
    assert str(raised.value) == (
        'invalid allocation request for "nvidia.com/gpu": invalid request: maximum request size for shared resources '
        "is 1; found 2"
    )


@pytest.mark.parametrize(
    "config", [SLICED, DevicePluginConfig(), DevicePluginConfig("mps", 4, fail_above_one=False)], ids=str
)
def test_two_are_given_otherwise(config: DevicePluginConfig) -> None:
    devices = device_ids(config, GPUS)
    check(config, devices, devices[:2])


def test_replicas_spread_over_gpus_and_the_packed_policy_fills_one_first() -> None:
    for policy, count in (("distributed", 2), ("packed", 1)):
        config = DevicePluginConfig("time-slicing", 4, policy=policy)
        devices = device_ids(config, GPUS)
        first = preferred(config, devices, devices, [], 1)
        second = preferred(config, devices, [each for each in devices if each not in first], [], 1)
        assert len({each.split("::")[0] for each in first + second}) == count


def test_no_more_is_preferred_than_there_is() -> None:
    devices = device_ids(SLICED, GPUS)
    assert len(preferred(SLICED, devices, devices, devices[:2], 3)) == 3
    with pytest.raises(Invalid, match="not enough available devices"):
        preferred(SLICED, devices, devices[:1], [], 2)


def test_a_container_is_given_its_gpus_each_once_and_their_markers() -> None:
    given = allocate(
        SLICED, GPUS, [f"{GPUS[1].uuid}::0", f"{GPUS[1].uuid}::3"], Path("/markers"), Path("/memory"), Path("/mps")
    )
    assert given.environment == {"NVIDIA_VISIBLE_DEVICES": GPUS[1].uuid}
    mount, memory = given.mounts
    assert memory.target == "/run/invented-gpu-memory"
    assert (mount.target, mount.read_only) == (f"/run/invented-gpus/1-{GPUS[1].uuid}.json", True)


@pytest.mark.parametrize(("rename", "resource"), [(False, "nvidia.com/gpu"), (True, "nvidia.com/gpu.shared")])
def test_under_mps_a_container_reaches_the_resources_daemon_and_has_no_limit_of_its_own(
    rename: bool, resource: str
) -> None:
    config = DevicePluginConfig("mps", 10, rename)
    given = allocate(config, GPUS, [f"{GPUS[0].uuid}::7"], Path("/markers"), Path("/memory"), Path("/root"))
    assert config.resource == resource
    assert given.environment["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{resource}/pipe"
    assert set(given.environment) == {"NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"}
    sources = {mount.target: mount.source for mount in given.mounts}
    assert sources[f"/mps/{resource}/pipe"] == Path("/root") / resource / "pipe"
    assert sources["/dev/shm"] == Path("/root/shm")


def test_the_daemons_limit_is_the_cards_memory_over_the_replicas() -> None:
    told = daemon_of(SHARED, GPUS)
    assert told["limits"] == {gpu.uuid: "8155M" for gpu in GPUS}, "81,559 MiB ÷ 10, whole MiB"
    assert told["active_threads"] == 10


def test_labels_say_how_a_gpu_is_shared() -> None:
    found = labels(SHARED, GPUS)
    expected = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.replicas": "10",
        "nvidia.com/gpu.sharing-strategy": "mps",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/mps.capable": "true",
    }
    assert expected.items() <= found.items()
    renamed = labels(DevicePluginConfig("time-slicing", 4, rename=True), GPUS)
    assert renamed["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert renamed["nvidia.com/mps.capable"] == "false"
    assert "nvidia.com/gpu.shared.replicas" not in renamed, "labels keep the resource's own name"
    assert labels(DevicePluginConfig(), GPUS)["nvidia.com/gpu.sharing-strategy"] == "none"
    assert labels(SHARED, []) == {}


def test_labels_are_what_the_api_server_accepts() -> None:
    for profile in ("h100-80gb", "rtx-5090", "l40s"):
        for value in labels(SHARED, gpus_of("n", 1, profile)).values():
            assert len(value) <= 63
            assert value.replace("-", "").replace(".", "").replace("_", "").isalnum()


@pytest.mark.parametrize("config", [None, DevicePluginConfig(), SHARED, DevicePluginConfig("mps", 3, True, False)])
def test_a_configuration_is_the_same_after_a_command_line(config: DevicePluginConfig | None) -> None:
    parser = argparse.ArgumentParser()
    add_plugin_options(parser)
    assert plugin_config(parser.parse_args(written(config))) == config
