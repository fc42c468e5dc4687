"""Regenerates the catalogue's pipelines from the sglang-omni package that is installed, or checks them for drift.

    python tests/catalogue/regenerate_catalogue.py [--check]

Runs in the environment of `tests/contract/requirements.txt` and `requirements-small.txt`, installed without further
dependencies: it needs neither torch nor a GPU. Nothing of the operator is imported, and the operator imports nothing of
upstream: the data file is all that passes between them.
"""

from __future__ import annotations

import ast
import importlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from decimal import Decimal
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import upstream_stubs

DATA = Path(__file__).parents[2] / "operator/omni_operator/catalogue/data/pipelines.json"
DEFAULT = "default"
NO_PIPELINE = frozenset({"streaming_cascade", "tools", "turn_detection", "vad"})
"""Packages beside the models that declare no pipeline of their own: their stages are given by the user."""
PLACED = frozenset({"model_path", "gpu_id", "tp_rank", "tp_size", "nccl_port", "server_args_overrides", "device",
                    "total_gpu_memory_fraction", "process_total_gpu_memory_fraction"})  # fmt: skip
"""Arguments of factories that sglang-omni's placement gives, and no user."""
NEEDS_STAGES = frozenset({"Qwen3OmniSessionPipelineConfig"})
"""Configurations without stages of their own."""


def main(arguments: list[str]) -> int:
    """Writes the file, or with --check says whether it is as upstream has it."""
    text = render(catalogue())
    if "--check" not in arguments:
        DATA.write_text(text, encoding="utf-8")
        return 0
    if DATA.read_text(encoding="utf-8") == text:
        return 0
    print(f"{DATA.name} is not what sglang-omni {version('sglang-omni')} declares; regenerate it", file=sys.stderr)
    return 1


def catalogue() -> dict[str, Any]:
    """All pipelines of the installed package."""
    logging.disable(logging.WARNING)
    upstream_stubs.install()
    models = importlib.import_module("sglang_omni.models")
    folder = Path(str(models.__file__)).parent
    pipelines = {}
    for name in sorted(os.listdir(folder)):
        if (folder / name / "config.py").is_file() and name not in NO_PIPELINE:
            pipelines[name] = pipeline(importlib.import_module(f"sglang_omni.models.{name}.config"))
    return {"source": f"sglang-omni {version('sglang-omni')}", "pipelines": pipelines}


def pipeline(module: Any) -> dict[str, Any]:
    """One model: what it serves, its variants, and which one upstream takes unasked."""
    classes = dict(variant_classes(module))
    entry = next(name for name, found in classes.items() if found is module.EntryClass)
    return {
        "architectures": [module.EntryClass.architecture, *module.EntryClass.architecture_aliases],
        "defaultVariant": entry,
        "variants": {name: variant(found) for name, found in classes.items()},
    }


def variant_classes(module: Any) -> Iterator[tuple[str, Any]]:
    """Names and classes; a model without variants has one, called default."""
    resolve = importlib.import_module("sglang_omni.models.registry").resolve_variant
    declared = {name: resolve(value) for name, value in dict(getattr(module, "Variants", {}) or {}).items()}
    declared = {name: found for name, found in declared.items() if found.__name__ not in NEEDS_STAGES}
    if module.EntryClass not in declared.values():
        yield DEFAULT, module.EntryClass
    yield from declared.items()


def variant(cls: Any) -> dict[str, Any]:
    """One configuration class as the catalogue keeps it."""
    try:
        config = cls(model_path="org/model")
    except ValueError:
        config = cls(model_path="org/model", max_sessions=2)  # Some ask how many sessions they are to hold.
    row: dict[str, Any] = {"configClass": cls.__name__}
    if local := sorted(cls.process_local_edges()):
        row["processLocalEdges"] = [list(edge) for edge in local]
    if apart := refused_together(config):
        row["apart"] = apart
    if keeps_to_one_gpu(config):
        row["oneGpu"] = True
    row["stages"] = [stage(found) for found in config.stages]
    return row


def stage(found: Any) -> dict[str, Any]:
    """One stage. Slots are a list, empty on the CPU; shares are decimal percents, so that no float is carried over."""
    gpus = found.gpu if isinstance(found.gpu, list) else [] if found.gpu is None else [found.gpu]
    row: dict[str, Any] = {
        "name": found.name,
        "process": found.process,
        "slots": gpus,
        "engine": type(found).engine_stage,
    }
    if found.gpu_memory_fraction is not None:
        row["share"] = f"{(Decimal(repr(found.gpu_memory_fraction)) * 100).normalize():f}%"
    if found.total_reserve_bytes is not None:
        row["reserveBytes"] = found.total_reserve_bytes
    row["next"] = list(found.next) if isinstance(found.next, (list, tuple)) else [found.next] if found.next else []
    if found.stream_to:
        row["streamTo"] = list(found.stream_to)
    if taken := factory_arguments(found.factory_path):
        row["arguments"] = taken
    return row


def factory_arguments(path: str) -> list[str]:
    """What a stage's factory takes from a user. Read from its source: importing it would need torch."""
    module, _, name = path.rpartition(".")
    file = Path(str(importlib.import_module("sglang_omni").__file__)).parent.parent / (module.replace(".", "/") + ".py")
    defined = next(
        node
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    )
    taken = [argument.arg for argument in (*defined.args.posonlyargs, *defined.args.args, *defined.args.kwonlyargs)]
    return sorted(set(taken) - PLACED)


def refused_together(config: Any) -> list[list[str]]:
    """Pairs of engines that upstream's own placement policy refuses on one GPU: each is tried."""
    if config.placement_policy is None:
        return []
    engines = [found for found in config.stages if type(found).engine_stage]
    return [
        [first.name, second.name]
        for first, second in combinations(engines, 2)
        if not _accepted(config, {first.name: 0, second.name: 0}, "share a GPU only")
    ]


def keeps_to_one_gpu(config: Any) -> bool:
    """Whether upstream's own placement policy refuses any one stage on a second GPU."""
    placed = [found.name for found in config.stages if found.gpu is not None]
    if config.placement_policy is None or len(placed) < 2:
        return False
    return not any(_accepted(config, {name: 1}, "one GPU") for name in placed)


def _accepted(config: Any, moved: dict[str, int], refusal: str) -> bool:
    """Whether the policy takes the layout with these stages moved; another refusal than the expected one is raised."""
    planner = importlib.import_module("sglang_omni.config.placement").StagePlacementPlanner
    stages = [
        found
        if found.gpu is None
        else found.model_copy(update={"gpu": moved.get(found.name, found.gpu), "gpu_memory_fraction": 0.01})
        for found in config.stages
    ]
    try:
        planner(config.model_copy(update={"stages": stages})).build()
    except ValueError as error:
        if refusal in str(error):
            return False
        raise
    return True


def render(document: dict[str, Any]) -> str:
    """JSON with one line a stage, so that a change upstream is a change of few lines."""
    lines = ["{", f' "source": {json.dumps(document["source"])},', ' "pipelines": {']
    for number, (name, row) in enumerate(document["pipelines"].items()):
        lines += [f'  "{name}": {{', f'   "architectures": {json.dumps(row["architectures"])},']
        lines += [f'   "defaultVariant": "{row["defaultVariant"]}",', '   "variants": {']
        for index, (title, found) in enumerate(row["variants"].items()):
            lines += [f'    "{title}": {{', f'     "configClass": "{found["configClass"]}",']
            lines += [
                f'     "{key}": {json.dumps(found[key])},'
                for key in ("processLocalEdges", "apart", "oneGpu")
                if key in found
            ]
            stages = ",\n".join(f"      {json.dumps(entry)}" for entry in found["stages"])
            lines += ['     "stages": [', stages, "     ]", "    }" + ("," if index < len(row["variants"]) - 1 else "")]
        lines += ["   }", "  }" + ("," if number < len(document["pipelines"]) - 1 else "")]
    return "\n".join([*lines, " }", "}"]) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
