"""From apply to every pod Running, by the operator and by hand: the same pods on one node, without their gates.

Puppets, so that images are there and stages are ready at once: what is left is Kubernetes, and the starting order.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

import yaml

from e2e.bare_client import Watch, connection
from e2e.cases.puppets import puppets
from e2e.cluster import Gpus, Progress, down, external_kubeconfig
from e2e.deploy import Target, install, target
from e2e.figures import Figure
from omni_operator.rendering import Settings
from omni_operator.rendering.plan import Plan, plan_for

CLUSTER, KEEP = os.environ.get("OMNI_CLUSTER", "bench"), "OMNI_KEEP" in os.environ
NAMESPACE = "bench-start"
NAME = "model"


async def pods_running(count: int, progress: Progress) -> list[Figure]:
    """Each way `count` times, in turns, on a cluster of its own."""
    if external_kubeconfig() is not None:
        return []
    on = target(progress, CLUSTER, Gpus(2, "h100-80gb", {"MPSSupport": True}), ("operator", "puppet"))
    install(on, progress)
    on.kubectl("create", "namespace", NAMESPACE)
    manifest = {**puppets(name=NAME)}
    manifest["metadata"]["namespace"] = NAMESPACE
    manifest["spec"]["image"] = on.images.puppet
    pods = by_hand(manifest)
    ours: list[float] = []
    bare: list[float] = []
    try:
        async with connection(yaml.safe_load(on.kubeconfig.read_text())) as (_, watch):
            with progress.step(f"starting a pipeline {count} times, each by the operator and by hand") as step:
                for number in range(count):
                    ours.append(await timed(on, watch, [manifest]))
                    bare.append(await timed(on, watch, pods))
                    step.show(f"{number + 1} of {count}")
    finally:
        if KEEP:
            on.kubectl("delete", "namespace", NAMESPACE)
        else:
            down(CLUSTER)
    return [figure(ours, bare)]


def figure(ours: list[float], bare: list[float]) -> Figure:
    more = statistics.median(mine - other for mine, other in zip(ours, bare, strict=True))
    peer = f"by hand: {statistics.median(bare):.2f} s; ours: {statistics.median(ours):.2f} s, {len(ours)} runs each"
    return Figure("apply to all pods Running, more than by hand", more, "s", 2.0, peer)


def by_hand(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """What `kubectl omni render` prints, without the gates."""
    served = {**manifest, "metadata": {**manifest["metadata"], "uid": "0", "generation": 1}}
    plan = plan_for(served, Settings(manifest["spec"]["image"]))
    assert isinstance(plan, Plan)
    rendered = [
        child.manifest for children in (plan.rendered.shared, *plan.rendered.replicas.values()) for child in children
    ]
    found: list[dict[str, Any]] = json.loads(json.dumps(rendered))
    for each in found:
        del each["metadata"]["ownerReferences"]
        each["spec"].pop("schedulingGates", None)
    return found


async def timed(on: Target, watch: Watch, manifests: list[dict[str, Any]]) -> float:
    """Seconds from kubectl's start to the last pod's Running. What was applied is gone again afterwards."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
    pods = 5  # a front, and four stages
    async with watch(f"/api/v1/namespaces/{NAMESPACE}/pods?watch=1") as events, asyncio.timeout(120):
        began = time.monotonic()
        await asyncio.to_thread(on.kubectl, "apply", "-f", "-", stdin=text)
        await all_running(events, pods)
        spent = time.monotonic() - began
    await asyncio.to_thread(remove, on, text)
    return spent


async def all_running(events: AsyncIterator[dict[str, Any]], pods: int) -> None:
    running: set[str] = set()
    async for event in events:
        pod = event["object"]
        if event["type"] != "DELETED" and pod["status"].get("phase") == "Running":
            running.add(pod["metadata"]["name"])
        if len(running) == pods:
            return


def remove(on: Target, text: str) -> None:
    on.kubectl("delete", "-f", "-", "--cascade=foreground", "--timeout=120s", stdin=text)
