"""Finds the pod of a stage and streams its log."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import BinaryIO

from omni_operator.api import names
from omni_operator.cli.documents import BadInput, Place
from omni_operator.cli.live import Cluster
from omni_operator.cli.live_model import LiveModel, Manifest, Readings
from omni_operator.cli.live_parse import clean, live_model
from omni_operator.cli.live_read import model_of, pods_of
from omni_operator.kube.client import KubeError
from omni_operator.kube.pages import log_of
from omni_operator.planning.containers import own_name, own_status
from omni_operator.planning.observed import FRONT

LOOK_AGAIN_SECONDS = 2.0


@dataclass(frozen=True)
class Wanted:
    """Which log, and how much of it."""

    name: str
    stage: str
    replica: int | None = None
    follow: bool = False
    previous: bool = False
    tail: int | None = None


async def stream(cluster: Cluster, wanted: Wanted, sink: BinaryIO) -> str:
    """Writes the log to `sink`. Why the stage has none yet comes back, or nothing. Raises BadInput, KubeError."""
    told = ""
    while True:
        manifest = await model_of(cluster, wanted.name)
        pods = await pods_of(cluster, manifest)
        model = live_model(manifest, Readings(pods))
        name = pod_of(model, wanted)
        pod = next((pod for pod in pods if pod["metadata"]["name"] == name), None)
        if pod is not None and (_has_run(pod) or wanted.previous):
            break
        why = f"{wanted.stage} has no log yet: {_state(model, name)}"
        if not wanted.follow:
            return why
        if why != told:
            print(why, file=sys.stderr, flush=True)
        told = why
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
    if wanted.replica is None and len(model.replicas) > 1:
        print(f"{len(model.replicas)} replicas; this is {name}", file=sys.stderr, flush=True)
    await _copy(cluster, wanted, name, own_name(pod), sink)
    return ""


def pod_of(model: LiveModel, wanted: Wanted) -> str:
    """The name of the pod that runs a stage or process. Raises BadInput, with the nearest name."""
    pods = pods_by_stage(model)
    place = Place(f"omnimodel {model.name}")
    if not pods:
        raise BadInput("has no stages: kubectl omni explain says why", place)
    known = sorted({stage for stage, _ in pods})
    if wanted.stage not in known:
        close = difflib.get_close_matches(wanted.stage, known, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise BadInput(f"has no stage {clean(wanted.stage)!r}; {meant}There are: {', '.join(known)}", place)
    replicas = sorted(replica for stage, replica in pods if stage == wanted.stage)
    replica = replicas[0] if wanted.replica is None else wanted.replica
    if replica not in replicas:
        raise BadInput(f"has no replica {replica}; there are: {', '.join(map(str, replicas))}", place)
    return pods[wanted.stage, replica]


def pods_by_stage(model: LiveModel) -> Mapping[tuple[str, int], str]:
    """Pods by (stage or process, replica); a stage's name comes before a process's."""
    layout = model.layout
    processes = {stage.name: stage.process for stage in layout.stages} if layout else {}
    found: dict[tuple[str, int], str] = {}
    for row in (*model.stages, *model.fronts):
        found.setdefault((row.name, row.replica), row.pod)
    for row in model.stages:
        if row.name in processes:
            found.setdefault((processes[row.name], row.replica), row.pod)
    for replica in model.replicas:  # Without a pod of its own yet, it still has a name.
        found.setdefault((FRONT, replica), names.front_pod_name(model.name, replica))
    return found


async def _copy(cluster: Cluster, wanted: Wanted, pod: str, container: str, sink: BinaryIO) -> None:
    chunks = log_of(
        cluster.client,
        cluster.namespace,
        pod,
        container,
        follow=wanted.follow,
        previous=wanted.previous,
        tail=wanted.tail,
    )
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                sink.write(chunk)
                sink.flush()
    except KubeError as error:
        if error.status == 400:  # Such as no container before this one: the API server's words are right as they are.
            raise BadInput(clean(error.message), Place(f"pod {pod}")) from None
        raise


def _has_run(pod: Manifest) -> bool:
    container = own_status(pod)
    state = container.get("state") or {}
    return "running" in state or "terminated" in state or bool(container.get("restartCount"))


def _state(model: LiveModel, pod: str) -> str:
    row = next((row for row in (*model.stages, *model.fronts) if row.pod == pod), None)
    if row is None:
        return f"pod {pod} is not there"
    return f"{row.state}{f', {row.why}' if row.why else ''}"
