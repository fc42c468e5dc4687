"""A stage's engine, played: takes GPU memory of the invented GPUs' ledger as an engine does, becomes ready when it is
told to, and obeys orders. An allocation that is refused, and a daemon that is not there, end it as they end CUDA."""

from __future__ import annotations

import os
import sys
import time

from e2e.fake_gpu.client import SOCKET, Memory, NoDaemon, OutOfMemory
from e2e.fake_gpu.engine import GIB, kv_cache
from omni_stage import report, strings
from omni_stage.contract import PodConfig
from omni_stage.engine.failures import reported
from omni_stage.files import read_config
from omni_stage.report import Phase, Report

BEAT_SECONDS = 1.0
POLL_SECONDS = 0.05
MIB = 1 << 20


class Puppet:
    """One engine process."""

    def __init__(self, config: PodConfig) -> None:
        self.own = [stage for stage in config.stages if stage.process == config.process]
        self.gpus = len({slot for stage in self.own for slot in stage.slots})
        self.budget = sum(stage.memory_bytes or 0 for stage in self.own)
        self.memory = Memory.connect() if self.gpus and SOCKET.exists() else None
        self.held = 0

    def play(self) -> None:
        """Until it is told to end, or killed."""
        report.send(Report(phase=Phase.LOADING, detail=f"loading {', '.join(stage.name for stage in self.own)}"))
        if order := os.environ.get("PUPPET_AT_START"):
            self.obey(order)
        if sizes := os.environ.get("PUPPET_SIZES"):
            self.size_kv_cache(*(int(float(size) * GIB) for size in sizes.split()))
        else:
            for gpu in range(self.gpus):
                self.take(self.budget // MIB * MIB, gpu)
            self.live(strings.ready_after())
        report.send(Report(phase=Phase.READY, memory_bytes=self.held))
        self.live()

    def take(self, size: int, gpu: int = 0) -> None:
        """Raises OutOfMemory."""
        if self.memory is not None:
            self.memory.alloc(size, gpu)
        self.held += size

    def size_kv_cache(self, weights: int, activations: int) -> None:
        """All of its share that is left, by its own measurements of the GPU."""
        assert self.memory is not None, "needs the ledger of invented GPUs"
        share = float(self.own[0].memory_share or 0)
        cache = kv_cache(self.memory, share, weights, activations, lambda step: self.live(strings.ready_after()))
        print(f"kvCacheGiB {cache / GIB:.2f}", flush=True)
        if cache <= 0:
            raise OutOfMemory("No available memory for the cache blocks")
        self.take(cache)

    def live(self, seconds: float = float("inf")) -> None:
        """Beat, and obey what comes."""
        file, beat = strings.orders_file(), 0.0
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            if now >= beat:
                report.send(Report(memory_bytes=self.held))
                beat = now + BEAT_SECONDS
            if order := strings.next_order(file):
                self.obey(order)
            time.sleep(POLL_SECONDS)

    def obey(self, order: str) -> None:
        name, _, value = order.partition(" ")
        if name == "alloc":
            self.take(int(value))
        else:
            strings.obey(order)


def main() -> None:
    """Failures of the invented GPUs are told in CUDA's words."""
    with reported():
        config = read_config(sys.argv[1])
        try:
            Puppet(config).play()
        except OutOfMemory as problem:
            raise RuntimeError(f"CUDA out of memory. {problem}") from problem
        except NoDaemon as problem:
            raise RuntimeError(f"CUDA error: {problem}") from problem


if __name__ == "__main__":
    main()
