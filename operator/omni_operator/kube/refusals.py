"""kubelet's events about pods of ours that do not start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from omni_operator.kube.client import CORE_EVENTS, Client, KubeError, Manifest
from omni_operator.planning.observed import Observed, ObservedPod
from omni_operator.planning.refusals import overdue

MAX_WORDS = 700


async def with_refusals(client: Client, namespace: str, observed: Observed, now: datetime) -> Observed:
    """The same, with kubelet's words on each pod that is overdue. One call, and none where no pod is. Without the right
    to read events the status lacks these words and nothing else."""
    stuck = [pod for pod in observed.pods.values() if overdue(pod, now)]
    if not stuck:
        return observed
    one = f",involvedObject.uid={stuck[0].uid}" if len(stuck) == 1 else ""
    try:
        events = await client.list_all(CORE_EVENTS, namespace, fields=f"involvedObject.kind=Pod{one}")
    except KubeError as error:
        if error.status != 403:
            raise
        return observed
    told = {pod.name: replace(pod, refusal=last_words(pod, events)) for pod in stuck}
    return replace(observed, pods={**observed.pods, **told})


def last_words(pod: ObservedPod, events: Iterable[Manifest]) -> str:
    """The newest of kubelet's events about the pod, if it is a warning: one that pulls an image has got further."""
    ours = [e for e in events if e["involvedObject"].get("uid") == pod.uid and _reporter(e) == "kubelet"]
    if not ours:
        return ""
    last = max(ours, key=_when)
    if last.get("type") != "Warning":
        return ""
    return f"{last.get('reason', '')}: {' '.join((last.get('message') or '').split())}"[:MAX_WORDS]


def _reporter(event: Manifest) -> str:
    source: Mapping[str, str] = event.get("source") or {}
    return event.get("reportingComponent") or source.get("component", "")


def _when(event: Manifest) -> tuple[datetime, str]:
    series = event.get("series") or {}
    told = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    told = told or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(told), event["metadata"].get("resourceVersion", "")
