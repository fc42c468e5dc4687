"""OmniModels as the API server would hand them out, in the states that the live commands show."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from omni_operator.cli.live_model import LiveModel, Page, Readings
from omni_operator.cli.live_parse import live_model
from tests.conftest import example

Manifest = dict[str, Any]

NOW = datetime(2026, 11, 29, 12, 10, tzinfo=UTC)
GIB = 2**30
UUID = "GPU-3fa1c2d4"
TYPES = ("Accepted", "Scheduled", "SharingReady", "StagesReady", "Ready")
GPU_STAGES = {"image_encoder": "2%", "audio_encoder": "2%", "thinker": "78%", "talker_ar": "10%", "code2wav": "2%"}
CPU_STAGES = ("preprocessing", "decode")


def model(
    states: dict[str, tuple[str, str]] | None = None,
    *,
    ready: tuple[str, str, str] = ("True", "Ready", "Serving on 1 of 1 replicas."),
    pages: dict[str, Page] | None = None,
    replicas: int = 1,
    spec: Manifest | None = None,
    notes: tuple[str, ...] = (),
    observed_generation: int = 1,
) -> LiveModel:
    """The colocated Qwen3-Omni. `states` are (state, reason) of stages that are not Ready; `pages` are by stage."""
    manifest = stored(states or {}, ready, replicas, spec or {})
    manifest["status"]["observedGeneration"] = observed_generation
    names = {row["name"]: row["pod"] for row in manifest["status"]["stages"]}
    by_pod = {names[stage]: page for stage, page in (pages or {}).items()}
    return live_model(manifest, Readings([pod(replica) for replica in range(replicas)], by_pod, notes))


def stored(
    states: dict[str, tuple[str, str]], ready: tuple[str, str, str], replicas: int = 1, spec: Manifest | None = None
) -> Manifest:
    manifest = example("qwen3-omni-h100-colocated")
    manifest["spec"] |= spec or {}
    manifest["metadata"]["creationTimestamp"] = "2026-11-29T12:00:00Z"
    rows = [
        stage(name, replica, *states.get(name, ("Ready", "")))
        for replica in range(replicas)
        for name in (*CPU_STAGES, *GPU_STAGES)
    ]
    good = sum(row["state"] == "Ready" for row in rows)
    manifest["status"] = {
        "observedGeneration": 1,
        "pipeline": "qwen3_omni/speech-colocated",
        "sharing": "MPS/DRA",
        "endpoint": "http://qwen3-omni.default.svc:8000/v1",
        "stagesReady": f"{good}/{len(rows)}",
        "gpuSummary": "0: 94%",
        "stages": rows,
        "gpus": [card(replica) for replica in range(replicas)],
        "conditions": [
            {
                "type": kind,
                "status": "True" if kind != "Ready" else ready[0],
                "reason": kind if kind != "Ready" else ready[1],
                "message": f"{kind} it is." if kind != "Ready" else ready[2],
                "observedGeneration": 1,
                "lastTransitionTime": "2026-11-29T12:05:00Z",
            }
            for kind in TYPES
        ],
    }
    return manifest


def stage(name: str, replica: int, state: str, reason: str) -> Manifest:
    row = {
        "name": name,
        "replica": replica,
        "pod": f"qwen3-omni-{replica}-{name.replace('_', '-')}",
        "state": state,
        "restarts": 3 if state == "Restarting" else 0,
        **({"reason": reason} if reason else {}),
    }
    return row | ({"slots": [0], "gpuMemory": GPU_STAGES[name]} if name in GPU_STAGES else {})


def card(replica: int) -> Manifest:
    return {
        "slot": 0,
        "replica": replica,
        "uuid": f"{UUID}-{replica}",
        "product": "NVIDIA H100 80GB HBM3",
        "node": "node-a",
        "capacity": "79.6Gi",
        "givenAway": "94%",
        "stages": list(GPU_STAGES),
    }


def pod(replica: int) -> Manifest:
    """A front that is ready."""
    labels = {"omnimodel.io/component": "front", "omnimodel.io/replica": str(replica)}
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": f"qwen3-omni-{replica}--front", "labels": labels},
        "spec": {"nodeName": "node-a"},
        "status": {"conditions": [ready]},
    }


def page(gib: float, *, on_gpu: bool = True, detail: str = "", mps: bool = True) -> Page:
    return Page("ready", detail, int(gib * GIB), on_gpu, mps)
