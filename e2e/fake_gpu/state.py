"""What the plugin keeps on disk, so that a restart knows what was prepared: claims, MPS daemons, markers, a ledger.

Under the plugin's folder, `plugins/gpu.nvidia.com/` of the kubelet's root, as the real driver's:

    claims/<claim uid>.json     what the kubelet was answered; removed when the claim is unprepared
    mps/<daemon id>/            daemon.json (devices and limits), and its pipe, shm (a tmpfs) and log folders; in pipe
                                the socket `control`, as NVIDIA's daemon has it, though nobody listens on it
    mps-root/                   the same for the device plugin: nvidia.com/<resource>/, and one shm for the node
    markers/<minor>-<uuid>.json one file for each GPU, mounted into containers
    faults.json                 faults that a test asked for (`faults.py`)
    offered.json                the GPUs, once their slice is published; absent while the plugin starts
    memory/, memory.jsonl       what containers take of the GPUs' memory (`memory_server.py`)
    ledger.jsonl                one line for each claim prepared, refused or unprepared, never rewritten
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from e2e.fake_gpu import one_daemon
from e2e.fake_gpu.cdi import device_id, file_name, marker, marker_name, specification
from e2e.fake_gpu.claims import Daemon, Group
from e2e.fake_gpu.gpu_config import Refused
from e2e.fake_gpu.memory_server import SOCKET_FOLDER
from e2e.fake_gpu.profiles import Gpu

SHM_OPTIONS = "rw,nosuid,nodev,noexec,relatime"


class State:
    """The plugin's files. Not safe for two callers at once; the plugin holds a lock."""

    def __init__(self, folder: Path, cdi: Path, interpreter: str, gpus: Sequence[Gpu]) -> None:
        self.folder = folder
        self.cdi = cdi
        self._check = (interpreter, "-I", "-S", one_daemon.__file__)
        for each in (self._claims, self._daemons, self.markers, self.memory, cdi):
            each.mkdir(parents=True, exist_ok=True)
        (folder / "offered.json").unlink(missing_ok=True)
        for gpu in gpus:
            _write(self.markers / marker_name(gpu), marker(gpu), mode=0o444)

    @property
    def _claims(self) -> Path:
        return self.folder / "claims"

    @property
    def _daemons(self) -> Path:
        return self.folder / "mps"

    @property
    def markers(self) -> Path:
        """One file for each GPU, which containers are given."""
        return self.folder / "markers"

    @property
    def memory(self) -> Path:
        """The folder of the memory ledger's socket, which containers are given."""
        return self.folder / SOCKET_FOLDER

    @property
    def mps_root(self) -> Path:
        """Where the device plugin's MPS daemons have their folders."""
        return self.folder / "mps-root"

    def offer(self, gpus: Sequence[Gpu]) -> None:
        """Say that the GPUs are published and the kubelet knows the plugin."""
        _write(self.folder / "offered.json", [marker(gpu) for gpu in gpus])

    def prepared(self, uid: str) -> dict[str, Any] | None:
        """What was kept about a prepared claim."""
        path = self._claims / f"{uid}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def check_free(self, uid: str, groups: Sequence[Group]) -> None:
        """Raise Refused if another claim has one of these devices prepared: the scheduler's choice is checked."""
        wanted = {each.gpu.name for group in groups for each in group.devices}
        for path in self._claims.glob("*.json"):
            taken = {each["device"] for each in json.loads(path.read_text())["devices"]}
            if path.stem != uid and (both := sorted(wanted & taken)):
                raise Refused(f"requested device {both[0]} is already allocated to different claim {path.stem}")

    def prepare(self, namespace: str, name: str, uid: str, groups: Sequence[Group]) -> dict[str, Any]:
        """Make the claim's daemons and its CDI specification, then keep it as prepared; returns what is kept."""
        for group in groups:
            if group.daemon:
                self._start(group.daemon)
        _write(
            self.cdi / file_name(uid), specification(uid, groups, self.markers, self.memory, self._daemons, self._check)
        )
        devices = [
            {
                "request": each.request,
                "pool": each.pool,
                "device": each.gpu.name,
                "uuid": each.gpu.uuid,
                "cdi": device_id(uid, each.gpu),
                "daemon": group.daemon.id if group.daemon else None,
            }
            for group in groups
            for each in group.devices
        ]
        kept = {"namespace": namespace, "name": name, "uid": uid, "devices": devices}
        _write(self._claims / f"{uid}.json", kept)
        self.record("prepared", **kept)
        return kept

    def unprepare(self, uid: str) -> None:
        """Undo `prepare`, whether it was done in full, in part, or not at all."""
        kept = self.prepared(uid)
        (self.cdi / file_name(uid)).unlink(missing_ok=True)
        for folder in self._daemons.glob(f"{uid}-*"):
            _stop(folder)
        if kept:
            (self._claims / f"{uid}.json").unlink()
            self.record("unprepared", **kept)

    def record(self, event: str, **facts: Any) -> None:
        """Add a line to the ledger."""
        line = json.dumps({"time": time.time(), "event": event, **facts})
        with (self.folder / "ledger.jsonl").open("a") as ledger:
            ledger.write(line + "\n")

    def _start(self, daemon: Daemon) -> None:
        folder = self._daemons / daemon.id
        make_daemon(folder, folder / "shm", asdict(daemon))


def make_daemon(folder: Path, shm: Path, told: Mapping[str, Any]) -> None:
    """The folders of an MPS control daemon, and what it was told. `shm` is made a tmpfs, unless it is one."""
    for each in (folder / "pipe", folder / "log", shm):
        each.mkdir(parents=True, exist_ok=True)
    if not shm.is_mount():
        options = f"{SHM_OPTIONS},size={_half_of_memory()}k"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "shm", shm], capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"error applying config: error starting MPS control daemon: {done.stderr.strip()}")
    for path in (folder / "daemon.json", folder / "pipe" / "invented-daemon.json"):
        _write(path, {"invented": True, **told}, mode=0o444)
    make_control(folder / "pipe")


def make_control(pipe: Path) -> None:
    """The socket at which an MPS control daemon is found; a client that finds none cannot connect."""
    if not (pipe / "control").exists():
        os.mknod(pipe / "control", stat.S_IFSOCK | 0o666)


def pipes(folder: Path) -> list[Path]:
    """The pipe folder of every MPS control daemon in a plugin's folder: of claims and of the device plugin."""
    return sorted([*folder.glob("mps/*/pipe"), *folder.glob("mps-root/nvidia.com/*/pipe")])


def _stop(folder: Path) -> None:
    if (folder / "shm").is_mount():
        subprocess.run(["umount", "--lazy", folder / "shm"], check=True, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def _half_of_memory() -> int:
    """Half of the node's memory in KiB, the size of the driver's tmpfs."""
    fields = Path("/proc/meminfo").read_text().split()
    return int(fields[fields.index("MemTotal:") + 1]) // 2


def _write(path: Path, content: Any, mode: int = 0o644) -> None:
    """Whole or not at all, so that a reader, or a restart, never sees a half."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.chmod(mode)
    unfinished.replace(path)
