"""OmniModels whose engines are puppets, and what cases ask of their pods. What is real in them: `e2e.puppet`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from e2e.cases.conftest import Manifest, Space
from omni_operator.api import names

NAME = "model"
TINY = {"thinker": "60%", "talker": "20%"}
"""GPU stages of the tiny pipeline, and their shares; the thinker, which is bigger, starts first."""
PROCESSES = ("preprocessing", "thinker", "talker", "decode")


def puppets(stages: Iterable[Manifest] = (), name: str = NAME, **spec: Any) -> Manifest:
    """A tiny pipeline on GPU 0; `stages` adds fields to its stages, or others."""
    rows: dict[str, Manifest] = {
        stage: {"name": stage, "gpus": [0], "gpuMemory": share} for stage, share in TINY.items()
    }
    for row in stages:
        rows[row["name"]] = {**rows.get(row["name"], {}), **row}
    return {
        "apiVersion": "omnimodel.io/v1alpha1",
        "kind": "OmniModel",
        "metadata": {"name": name},
        "spec": {
            "model": {"id": "/models/tiny", "pipeline": "tiny_omni", "cache": {"emptyDir": {}}},
            "gpus": {"card": "h100-80gb", "sharing": {"strategy": "MPS"}},
            "stages": list(rows.values()),
            **spec,
        },
    }


def env(**variables: str) -> list[Manifest]:
    """`env` of a stage."""
    return [{"name": name, "value": value} for name, value in variables.items()]


def applied(space: Space, manifest: Manifest) -> Manifest:
    """Apply with the puppet image; the manifest as applied."""
    manifest["spec"].setdefault("image", space.on.images.puppet)
    space.apply(manifest)
    return manifest


def pods(space: Space, model: str = NAME) -> dict[str, Manifest]:
    """Every pod of an OmniModel by its name without the model's: `0-thinker`, `0--front`."""
    found = space.on.items("pods", space.name, f"{names.MODEL_LABEL}={model}")
    return {pod["metadata"]["name"].removeprefix(f"{model}-"): pod for pod in found}


def uids(found: Mapping[str, Manifest]) -> dict[str, str]:
    """{name: uid}; a successor of the same name has another one."""
    return {name: each["metadata"]["uid"] for name, each in found.items()}


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """Names that are new, gone, or another object's now."""
    return {name for name in {**before, **after} if before.get(name) != after.get(name)}


def claims(space: Space) -> dict[str, Manifest]:
    """{name: ResourceClaim}."""
    return {claim["metadata"]["name"]: claim for claim in space.on.items("resourceclaims", space.name)}


def ready(space: Space, model: str = NAME, seconds: float = 90.0) -> Manifest:
    """The OmniModel, once its newest generation is Ready."""

    def is_ready() -> Manifest | None:
        found = space.model(model)
        rows = (found.get("status") or {}).get("conditions") or []
        row = next((row for row in rows if row["type"] == "Ready"), {})
        current = row.get("observedGeneration") == found["metadata"]["generation"]
        return found if row.get("status") == "True" and current else None

    found: Manifest = space.wait(f"{model} is Ready", is_ready, seconds)
    return found


def order(space: Space, pod: str, text: str) -> None:
    """Give a puppet its orders, one a line."""
    space.on.kubectl("exec", "-i", "-n", space.name, pod, "--", "sh", "-c", "cat > /tmp/puppet", stdin=text)


def started(pod: Manifest) -> datetime:
    """When the container that runs was started."""
    return datetime.fromisoformat(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])


def since(pod: Manifest, condition: str) -> datetime:
    """When a condition of the pod came to hold."""
    rows = pod["status"]["conditions"]
    row = next(row for row in rows if row["type"] == condition and row["status"] == "True")
    return datetime.fromisoformat(row["lastTransitionTime"])


def restarts(found: Mapping[str, Manifest]) -> dict[str, int]:
    """Restarts of each pod's container."""
    return {name: pod["status"]["containerStatuses"][0]["restartCount"] for name, pod in found.items()}


def seen_by(space: Space, pod: str, *command: str) -> str:
    """What a command prints inside of a pod."""
    return space.on.kubectl("exec", "-n", space.name, pod, "--", *command).strip()


def holds(space: Space, what: str, check: Callable[[], Any], seconds: float) -> None:
    """`check` is true all the time."""
    space.never(f"not any more: {what}", lambda: not check(), seconds)
