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
from dataclasses import dataclass
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
FIRST, SECOND = f"{NAME}-0-thinker", f"{NAME}-0-talker"
PODS = 5
"""A front, and four stages."""


async def pods_running(count: int, progress: Progress) -> list[Figure]:
    """Each way `count` times, in turns, on a cluster of its own."""
    if external_kubeconfig() is not None:
        return []
    on = target(progress, CLUSTER, Gpus(2, "h100-80gb", {"MPSSupport": True}), ("operator", "puppet"))
    install(on, progress)
    on.kubectl("create", "namespace", NAMESPACE)
    manifest = puppets(name=NAME, image=on.images.puppet)
    manifest["metadata"]["namespace"] = NAMESPACE
    pods = by_hand(manifest)
    ours: list[Start] = []
    bare: list[Start] = []
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
    return figures(ours, bare)


@dataclass(frozen=True)
class Start:
    """One start, in seconds."""

    running: float
    """From apply to the last pod's Running."""
    turn: float
    """From the first GPU stage's Ready to the next one's open gate: what the operator takes of it."""


def figures(ours: list[Start], bare: list[Start]) -> list[Figure]:
    more = statistics.median(mine.running - other.running for mine, other in zip(ours, bare, strict=True))
    mine, hand = (statistics.median(start.running for start in starts) for starts in (ours, bare))
    peer = f"by hand: {hand:.2f} s; ours: {mine:.2f} s, {len(ours)} runs each, two GPU stages in turn"
    turn = statistics.median(start.turn for start in ours)
    return [
        Figure("apply to all pods Running, more than by hand", more, "s", 2.0, peer),
        Figure("of it from one stage's Ready to the next one's gate", turn, "s", 0.3, "the operator's own part"),
    ]


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


async def timed(on: Target, watch: Watch, manifests: list[dict[str, Any]]) -> Start:
    """Seconds from kubectl's start. What was applied is gone again afterwards."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
    async with watch(f"/api/v1/namespaces/{NAMESPACE}/pods?watch=1") as events, asyncio.timeout(120):
        began = time.monotonic()
        await asyncio.to_thread(on.kubectl, "apply", "-f", "-", stdin=text)
        turn = await all_running(events)
        spent = time.monotonic() - began
    await asyncio.to_thread(remove, on, text)
    return Start(spent, turn)


async def all_running(events: AsyncIterator[dict[str, Any]]) -> float:
    """The seconds that the second GPU stage's gate stayed closed after the first was Ready; 0 where it has none."""
    running: set[str] = set()
    ready = gate = 0.0
    async for event in events:
        pod, now = event["object"], time.monotonic()
        name = pod["metadata"]["name"]
        if event["type"] == "DELETED":
            continue
        if name == FIRST and is_ready(pod):
            ready = ready or now
        if name == SECOND and ready and not pod["spec"].get("schedulingGates"):
            gate = gate or now
        if pod["status"].get("phase") == "Running":
            running.add(name)
        if len(running) == PODS:
            break
    return max(0.0, gate - ready) if ready else 0.0


def is_ready(pod: dict[str, Any]) -> bool:
    rows = pod["status"].get("conditions") or []
    return any(row["type"] == "Ready" and row["status"] == "True" for row in rows)


def remove(on: Target, text: str) -> None:
    on.kubectl("delete", "-f", "-", "--cascade=foreground", "--timeout=120s", stdin=text)
