"""The part of an engine that this project is about: how it finds out how much memory its KV cache may have.

As vLLM does: measure what is free, load the weights, run a profiling pass at its largest batch, measure again, and give
the cache what is left of the share of the whole card. What a neighbour takes between the two measurements is counted as
its own. No model and no GPU: the memory is counted by the ledger of the invented GPUs.

    python -m e2e.fake_gpu.engine --share 0.35 --weights 6.03 --activations 0.395    # GiB; then it holds its memory
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from e2e.fake_gpu.client import Memory, OutOfMemory

GIB = 2**30
MEASURED, LOADED, PROFILED = "measured", "loaded", "profiled"


def kv_cache(
    memory: Memory, share: float, weights: int, activations: int, reached: Callable[[str], None] = lambda step: None
) -> int:
    """Load, profile, and return the bytes for the KV cache, which may be negative. `reached` is called at each step."""
    before = memory.info()
    reached(MEASURED)
    memory.alloc(weights)
    reached(LOADED)
    peak = memory.alloc(activations)
    taken = before.free - memory.info().free
    memory.free(peak)
    reached(PROFILED)
    return int(before.total * share) - taken


class Rendezvous:
    """Makes engines that share `folder` go step by step, in the order of their turns, so that one overlap of all that
    are possible happens every time: each measures before any loads, and profiles alone while all have loaded."""

    def __init__(self, folder: Path, parties: int, turn: int) -> None:
        self._folder = folder
        self._parties = parties
        self._turn = turn

    def reached(self, step: str) -> None:
        (self._folder / f"{step}-{self._turn}").touch()
        self._wait(step, self._parties)
        if step == LOADED:
            self._wait(PROFILED, self._turn)

    def _wait(self, step: str, parties: int) -> None:
        while not all((self._folder / f"{step}-{each}").exists() for each in range(parties)):
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.fake_gpu.engine", description=__doc__)
    parser.add_argument("--share", type=float, required=True, help="of the whole card")
    parser.add_argument("--weights", type=float, required=True, metavar="GIB")
    parser.add_argument("--activations", type=float, required=True, metavar="GIB")
    parser.add_argument("--meet", type=Path, metavar="FOLDER", help="go step by step with others that name this folder")
    parser.add_argument("--parties", type=int, default=1)
    parser.add_argument("--turn", type=int, default=0)
    given = parser.parse_args()
    meeting = Rendezvous(given.meet, given.parties, given.turn) if given.meet else None
    sizes = (int(given.weights * GIB), int(given.activations * GIB))
    with Memory.connect() as memory:
        try:
            size = kv_cache(memory, given.share, *sizes, *([meeting.reached] if meeting else []))
            print(json.dumps({"kvCacheGiB": round(size / GIB, 2)}), flush=True)
            if size <= 0:
                sys.exit("No available memory for the cache blocks")
            memory.alloc(size)
        except OutOfMemory as problem:
            sys.exit(str(problem))
        print("serving", flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
