"""PURE: the CDI specification of a prepared claim: what the container runtime injects for each of its devices.

As NVIDIA's driver does: one device `k8s.gpu.nvidia.com/claim=<claim uid>-<device>` for each result; under MPS each also
sets CUDA_MPS_PIPE_DIRECTORY and mounts the daemon's pipe folder and its `/dev/shm`.

Unlike NVIDIA's driver, which sets NVIDIA_VISIBLE_DEVICES=void (its containers find their GPUs by device nodes, of which
there are none here), the variable lists the uuids of the device's request. Where one container picks several requests,
the last one's list remains; `/run/invented-gpus/` is always complete: one file `<minor>-<uuid>.json` for each GPU that
the container has, the n-th by minor number being CUDA's ordinal n. `/run/invented-gpu-memory/` has the socket of the
ledger that counts what containers take (`client.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.fake_gpu.claims import Allocated, Daemon, Group
from e2e.fake_gpu.profiles import Gpu

KIND = "k8s.gpu.nvidia.com/claim"
MARKERS = "/run/invented-gpus"
MEMORY = "/run/invented-gpu-memory"
"""Where a container finds the socket of the node's memory ledger."""
PIPE_FOLDER = "/tmp/nvidia-mps"
BIND = ["nosuid", "nodev", "bind"]


def device_id(claim_uid: str, gpu: Gpu) -> str:
    """The qualified name by which the kubelet passes a device to the runtime."""
    return f"{KIND}={claim_uid}-{gpu.name}"


def file_name(claim_uid: str) -> str:
    return f"k8s.gpu.nvidia.com-claim_{claim_uid}.json"


def marker(gpu: Gpu) -> dict[str, Any]:
    """What a container is told about one of its GPUs."""
    return {
        "invented": True,
        "minor": gpu.minor,
        "uuid": gpu.uuid,
        "productName": gpu.profile.product,
        "memory": gpu.profile.memory_bytes,
    }


def specification(
    claim_uid: str, groups: Sequence[Group], markers: Path, memory: Path, daemons: Path, check: Sequence[str]
) -> dict[str, Any]:
    """The claim's specification.

    `markers` holds the GPUs' files, `memory` the ledger's socket, `daemons` one folder for each daemon. `check` is a
    command that is run before a container starts, once for each daemon that it was given, and refuses a second one.
    """
    devices = []
    for group in groups:
        for allocated in group.devices:
            uuids = [each.gpu.uuid for each in group.devices if each.request == allocated.request]
            edits = _edits(allocated, uuids, markers, memory)
            if group.daemon:
                _share(edits, group.daemon, daemons, check)
            devices.append({"name": f"{claim_uid}-{allocated.gpu.name}", "containerEdits": edits})
    return {"cdiVersion": "0.6.0", "kind": KIND, "devices": devices}


def marker_name(gpu: Gpu) -> str:
    return f"{gpu.minor}-{gpu.uuid}.json"


def _edits(allocated: Allocated, uuids: Sequence[str], markers: Path, memory: Path) -> dict[str, Any]:
    name = marker_name(allocated.gpu)
    marked = {"hostPath": str(markers / name), "containerPath": f"{MARKERS}/{name}", "options": ["ro", *BIND]}
    ledger = {"hostPath": str(memory), "containerPath": MEMORY, "options": ["ro", *BIND]}
    return {"env": [f"NVIDIA_VISIBLE_DEVICES={','.join(uuids)}"], "mounts": [marked, ledger]}


def _share(edits: dict[str, Any], daemon: Daemon, daemons: Path, check: Sequence[str]) -> None:
    folder = daemons / daemon.id
    edits["env"].append(f"CUDA_MPS_PIPE_DIRECTORY={PIPE_FOLDER}")
    edits["mounts"] += [
        {"hostPath": str(folder / "shm"), "containerPath": "/dev/shm", "options": ["rw", *BIND]},
        {"hostPath": str(folder / "pipe"), "containerPath": PIPE_FOLDER, "options": ["rw", *BIND]},
    ]
    edits["hooks"] = [{"hookName": "createRuntime", "path": check[0], "args": [*check, daemon.id]}]
