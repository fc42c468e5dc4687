"""By which a puppet is moved. Standard library only.

Environment, of each start of the container:
    PUPPET_READY_AFTER  seconds until it says that it is ready; missing: at once
    PUPPET_AT_START     an order that it obeys at each start, before it is ready
    PUPPET_SIZES        `WEIGHTS ACTIVATIONS` in GiB: measure the GPU, load, profile and size a KV cache, as vLLM does,
                        each step taking PUPPET_READY_AFTER; missing: take the whole budget, on each GPU

Orders, one a line, in the file `/tmp/puppet` of a running container, or for the next one: the folder outlives a
container. A line is taken out before it is obeyed, so that three lines `exit-lost` end three containers.
    exit-out-of-budget, exit-cuda-fault, exit-lost, exit-peer-lost, exit-bad-config
                        end as an engine would that had this happen, and let the supervisor find out
    never-ready         say nothing, ever: a start that hangs
    hang                the same of an engine that was ready
    alloc BYTES         take more memory, on its first GPU
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from omni_stage import report
from omni_stage.contract import ConfigError
from omni_stage.report import FailureKind, Report

LAST_WORDS = {
    "exit-out-of-budget": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "exit-cuda-fault": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "exit-lost": "RuntimeError: the puppet was told to end",
}
"""What engines that ended so have left on standard error."""


def orders_file() -> Path:
    """Where orders come from."""
    return Path(tempfile.gettempdir()) / "puppet"


def next_order(file: Path) -> str:
    """Take the first line; empty where there is none."""
    try:
        lines = [line for line in file.read_text().splitlines() if line.strip()]
    except OSError:
        return ""
    if not lines:
        return ""
    unfinished = file.with_suffix(".rest")
    unfinished.write_text("\n".join(lines[1:]))
    unfinished.replace(file)
    return lines[0].strip()


def ready_after() -> float:
    """Seconds."""
    return float(os.environ.get("PUPPET_READY_AFTER") or 0)


def obey(order: str) -> None:
    """Raises SystemExit or ConfigError for an order to end; returns after one that is done."""
    if order in LAST_WORDS:
        print(LAST_WORDS[order], file=sys.stderr, flush=True)
        raise SystemExit(1)
    if order == "exit-peer-lost":
        report.send(Report(failure=FailureKind.PEER_LOST, detail="request r1 was not taken over"))
        raise SystemExit(1)
    if order in ("never-ready", "hang"):
        while True:
            time.sleep(3600)
    if order == "exit-bad-config":
        raise ConfigError("stages.puppet.engine_args: the puppet was told to find this wrong")
    raise ConfigError(f"the puppet knows no order {order!r}")
