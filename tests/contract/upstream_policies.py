"""What upstream's own placement policy says of placements: JSON lists on standard input, verdicts on standard output.

A process of its own, since reading upstream's classes without SGLang puts hollow modules in its place.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.util import find_spec
from typing import Any

from tests.catalogue import upstream_stubs


def refused(config: Any, placed: dict[str, list[int]]) -> bool:
    """Whether upstream refuses a configuration whose stages are on these GPUs."""
    from sglang_omni.config.placement import StagePlacementPlanner

    stages = []
    for stage in config.stages:
        gpus = placed.get(stage.name, [])
        gpu = None if not gpus else gpus[0] if len(gpus) == 1 else gpus
        share = 0.01 if gpus else None
        changes = {"gpu": gpu, "tp_size": max(1, len(gpus)), "gpu_memory_fraction": share}
        stages.append(stage.model_copy(update=changes))
    try:
        StagePlacementPlanner(config.model_copy(update={"stages": stages})).build()
    except ValueError:
        return True
    return False


def main() -> None:
    """`{"pipeline", "variant", "placements": [{stage: gpus}]}` → `[true, false, …]`."""
    if find_spec("sglang") is None:
        upstream_stubs.install()
    asked = json.load(sys.stdin)
    module = importlib.import_module(f"sglang_omni.models.{asked['pipeline']}.config")
    resolve = importlib.import_module("sglang_omni.models.registry").resolve_variant
    config = resolve(module.Variants[asked["variant"]])(model_path="org/model")
    json.dump([refused(config, placed) for placed in asked["placements"]], sys.stdout)


if __name__ == "__main__":
    main()
