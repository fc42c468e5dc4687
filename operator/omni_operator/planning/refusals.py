"""Why a pod that has a node does not start: kubelet says so in events alone, and here is what the words mean.

Reading events costs a call, so only pods that have waited for a while are asked about; and since nothing tells us when
an event comes, such a pod is looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from omni_operator.api.reasons import Reason
from omni_operator.planning.observed import ObservedPod

PATIENCE = timedelta(seconds=15)
"""A claim is prepared and a container made within this time, where nothing is wrong and the image is there."""


@dataclass(frozen=True)
class DriverRefusal:
    """Why NVIDIA's DRA driver does not prepare a claim: by what words it is known, and what would help."""

    words: re.Pattern[str]
    reason: Reason
    remedy: str


def _gate_off(strategy: str, gate: str) -> re.Pattern[str]:
    """The driver's words while a gate is off: the first of them up to release 25.8, the others later."""
    return re.compile(
        rf"unknown GPU sharing strategy: {strategy}\b"
        rf'|"{strategy}" is selected as the GPU sharing strategy, but'
        rf'|"{gate}" feature gate is not enabled'
    )


REFUSALS = (
    DriverRefusal(
        _gate_off("MPS", "MPSSupport"),
        Reason.MPS_UNAVAILABLE,
        "turn on the feature gate MPSSupport of NVIDIA's DRA driver, or set spec.gpus.sharing.strategy to TimeSlicing",
    ),
    DriverRefusal(
        re.compile(r"MPS (sharing )?is not (yet )?supported when .*(consumable shares|DynamicMIG)"),
        Reason.MPS_UNAVAILABLE,
        "turn off the feature gate ConsumableShares (or DynamicMIG) of NVIDIA's DRA driver, which excludes MPS, or set "
        "spec.gpus.sharing.strategy to TimeSlicing",
    ),
    DriverRefusal(
        _gate_off("TimeSlicing", "TimeSlicingSettings"),
        Reason.TIME_SLICING_UNAVAILABLE,
        "turn on the feature gate TimeSlicingSettings of NVIDIA's DRA driver, or remove spec.gpus.sharing.interval: "
        "plain time-slicing needs no gate",
    ),
)


def waits_for_kubelet(pod: ObservedPod) -> bool:
    """Whether the pod has a node, and its container was not made yet."""
    made = pod.ready or pod.ended or pod.started is not None or pod.exit_code is not None or pod.restarts
    creating = pod.waiting.split(":", 1)[0] in ("", "ContainerCreating", "PodInitializing")
    return pod.node is not None and not pod.deleting and not made and creating


def overdue(pod: ObservedPod, now: datetime) -> bool:
    """Whether it waits for longer than it should. A binding in the future means that clocks differ: then ask."""
    if not waits_for_kubelet(pod):
        return False
    return pod.bound is None or not now - PATIENCE < pod.bound <= now


def look_again(pods: Iterable[ObservedPod], now: datetime) -> timedelta | None:
    """When to ask (again) why a pod does not start; None: every pod was taken up."""
    waiting = [pod for pod in pods if waits_for_kubelet(pod)]
    if not waiting:
        return None
    fresh = [PATIENCE - (now - pod.bound) for pod in waiting if pod.bound is not None and not overdue(pod, now)]
    return min(fresh, default=PATIENCE)


def driver_refusal(pod: ObservedPod | None) -> DriverRefusal | None:
    """Why the driver does not offer what was asked, where we know its words."""
    if pod is None or not pod.refusal:
        return None
    return next((each for each in REFUSALS if each.words.search(pod.refusal)), None)


def refusal_words(pod: ObservedPod) -> str:
    """kubelet's words, begun by our reason and the remedy where we know them."""
    known = driver_refusal(pod)
    return f"{known.reason}: {known.remedy}. The driver says: {pod.refusal}" if known is not None else pod.refusal
