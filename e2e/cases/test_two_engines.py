"""Why stages of one GPU start one after another: engines that start at once count each other's memory as their own.

The figures are those of vllm-project/vllm#55827: an RTX 5090, shares of 0.35 and 0.20. These are plain pods that share
a claim, with nobody to order them; the invented card counts what they take. They need no operator.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster, DevicePluginConfig, Gpus, Progress, down, external_kubeconfig, up
from e2e.deploy import ROOT, wait_for
from e2e.images.build import RECIPES, Builder
from e2e.images.load import load

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(external_kubeconfig() is not None, reason="needs the ledger of invented GPUs"),
]

NAME = "e2e-engines"
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "card"},
    "spec": {"devices": {"requests": [{"name": "slot0", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
}
# Name -> share, weights and activations in GiB: what leaves the report's KV caches when each starts alone.
ENGINES = {"first": (0.35, 6.03, 0.395), "second": (0.20, 2.88, 0.668)}
SOURCES = [ROOT / "e2e" / "fake_gpu" / f"{name}.py" for name in ("client", "engine")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    progress = Progress()
    found = up(NAME, Gpus(1, "rtx-5090"), progress)
    builder = Builder(progress=progress)
    builder.build(RECIPES["base"])
    load(found, builder.layout, [RECIPES["base"]], progress)
    texts = [f"--from-file={path}" for path in SOURCES]
    found.kubectl("create", "configmap", "engine", *texts)
    found.kubectl("apply", "-f", "-", stdin=json.dumps(CLAIM))
    yield found
    down(NAME)


@pytest.fixture(autouse=True)
def _no_engine_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.kubectl("delete", "pods", "--all", "--timeout=60s")
    # A pod without a grace period is gone before its process, which the next engine would measure.
    wait_for("all memory is free", lambda: not any(card.now for card in cluster.gpu_memory().values()), 60)


def start(cluster: Cluster, name: str, *more: str, limit: str = "") -> None:
    """A pod that shares the claim; with a limit, one with a replica of the device plugin under MPS."""
    share, weights, activations = ENGINES[name]
    given = [f"--share={share}", f"--weights={weights}", f"--activations={activations}", *more]
    container: dict[str, Any] = {
        "name": "engine",
        "image": RECIPES["base"].name,
        "command": ["python3", "-m", "e2e.fake_gpu.engine", *given],
        "env": [{"name": "PYTHONPATH", "value": "/src"}],
        "resources": {"claims": [{"name": "gpus"}]},
        "volumeMounts": [{"name": "engine", "mountPath": "/src/e2e/fake_gpu"}, {"name": "meet", "mountPath": "/meet"}],
    }
    if limit:
        container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        container["env"].append({"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": limit})
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "resourceClaims": [] if limit else [{"name": "gpus", "resourceClaimName": "card"}],
        "volumes": [
            {"name": "engine", "configMap": {"name": "engine"}},
            {"name": "meet", "hostPath": {"path": "/run/meet", "type": "DirectoryOrCreate"}},
        ],
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def until(cluster: Cluster, name: str, words: str) -> None:
    wait_for(
        f"{name}: {words}",
        lambda: words in cluster.kubectl("logs", name, check=False),
        60,
        lambda: cluster.kubectl("describe", "pod", name),
    )


def kv_cache(cluster: Cluster, name: str) -> Any:
    """GiB, as the engine found."""
    until(cluster, name, "kvCacheGiB")
    [line] = [each for each in cluster.kubectl("logs", name).splitlines() if "kvCacheGiB" in each]
    return json.loads(line)["kvCacheGiB"]


def test_one_after_the_other_both_get_what_their_shares_leave(cluster: Cluster) -> None:
    since = time.time()
    for name in ENGINES:
        start(cluster, name)
        until(cluster, name, "serving")
    assert {name: kv_cache(cluster, name) for name in ENGINES} == {"first": 4.72, "second": 2.82}
    [card] = cluster.gpu_memory(since).values()
    assert set(card.clients) == set(ENGINES)
    assert not card.refusals


def test_started_at_once_one_gets_too_little_and_the_other_fails(cluster: Cluster) -> None:
    for turn, name in enumerate(ENGINES):
        start(cluster, name, "--meet=/meet", "--parties=2", f"--turn={turn}")
    until(cluster, "second", "No available memory for the cache blocks")
    assert {name: kv_cache(cluster, name) for name in ENGINES} == {"first": 1.84, "second": -3.21}


def test_under_mps_an_engine_is_held_to_its_limit_and_its_neighbour_keeps_its_own(cluster: Cluster) -> None:
    cluster.set_gpus(Gpus(1, "rtx-5090", plugin=DevicePluginConfig("mps", 3)))
    since = time.time()
    limits = {"first": "0=10800M", "second": "0=9000M"}  # the daemon's is 32607 MiB ÷ 3 = 10869 MiB
    for name, limit in limits.items():
        start(cluster, name, limit=limit)
        until(cluster, name, "kvCacheGiB")
    until(cluster, "second", "serving")
    until(cluster, "first", "asks for 4.72 GiB")
    assert "4.52 GiB is free within its MPS limit of 10.55 GiB, 6.03 GiB is its own" in cluster.kubectl("logs", "first")
    [card] = cluster.gpu_memory(since).values()
    assert [each["client"] for each in card.refusals] == ["first"]
