"""One stage of a vLLM-Omni file: its devices, its replicas and its budget.

Sources: `vllm_omni/config/stage_config.py`, `engine/stage_init_utils.py` (how devices are split between replicas) and
`diffusion/data.py` (the world size of a diffusion stage), all of 0.30.0. A rank counts its share on its device.
"""

from __future__ import annotations

from math import prod
from typing import Any

from omni_operator.importing import reading
from omni_operator.importing.found import FoundStage
from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.importing.reading import Data

_LLM_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")
_DIFFUSION_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "cfg_parallel_size")
_FLAT_SIZES = (*_DIFFUSION_SIZES, "allgather_degree", "ulysses_degree", "ring_degree", "sequence_parallel_size",
               "use_hsdp", "hsdp_shard_size", "hsdp_replicate_size")  # fmt: skip
_CAPS = ("kv_cache_memory_bytes", "num_gpu_blocks_override")


def merged(stage: Data, path: str) -> dict[str, Any]:
    """The stage with `engine_args` and `runtime` at one level. The inner ones win, as upstream has it."""
    runtime = reading.mapping(stage, "runtime", path)
    flat = {key: value for key, value in stage.items() if key not in ("engine_args", "runtime", "engine_extras")}
    flat = {**reading.mapping(stage, "engine_extras", path), **flat, **reading.mapping(stage, "engine_args", path)}
    for key in ("devices", "num_replicas", "env"):
        if key in runtime:
            flat[key] = runtime[key]
    return flat


def read(stage: Data, path: str, name: str, diffusion: bool | None, wide: Data, notes: list[Note]) -> FoundStage:
    """A stage from its merged fields; `wide` are the settings that the file makes for all its stages."""
    is_diffusion = diffusion if diffusion is not None else stage.get("stage_type") == "diffusion"
    world = _world(stage, path, is_diffusion, wide)
    number = reading.count(stage, "num_replicas", path, least=0) or 1
    listed = reading.devices(stage, "devices", path)
    copies = _copies(listed, world, number, path, notes)
    budget = reading.share(stage, "gpu_memory_utilization", path)
    kv_cache, _ = reading.amount(stage, "kv_cache_memory_bytes", path)
    if is_diffusion and budget is not None:
        notes.append(
            Note(
                NoteKind.WARNING,
                NoteReason.SHARE_NOT_ENFORCED,
                f"{name} is a diffusion stage: vLLM-Omni counts its share of {budget}, but does not enforce it.",
                f"{path}.gpu_memory_utilization",
            )
        )
    return FoundStage(
        name=name,
        path=path,
        devices=copies[0],
        budget=budget,
        kv_cache=None if kv_cache is None else kv_cache.value,
        copies=tuple(group for group in copies if group is not None) if len(copies) > 1 else (),
        token_cap=any(stage.get(key) is not None for key in _CAPS),
        diffusion=is_diffusion,
    )


def _world(stage: Data, path: str, diffusion: bool, wide: Data) -> int:
    """Devices that one replica needs."""
    parallel = reading.mapping(stage, "parallel_config", path)
    if diffusion or parallel:
        # The engine reads the nested block; the same fields on the stage are overrides of it.
        return _diffusion_world({**_present(stage), **parallel}, path)
    sizes = {**{key: wide[key] for key in ("data_parallel_size", "pipeline_parallel_size") if key in wide}, **stage}
    local = reading.count(sizes, "data_parallel_size_local", path) or reading.count(sizes, "data_parallel_size", path)
    return (local or 1) * prod(reading.count(sizes, key, path) or 1 for key in _LLM_SIZES)


def _diffusion_world(sizes: Data, path: str) -> int:
    others = prod(reading.count(sizes, key, path) or 1 for key in _DIFFUSION_SIZES)
    gathered = reading.count(sizes, "allgather_degree", path) or 1
    degrees = prod(reading.count(sizes, key, path) or 1 for key in ("ulysses_degree", "ring_degree"))
    sequence = reading.count(sizes, "sequence_parallel_size", path) or (gathered if gathered > 1 else degrees)
    world = others * max(sequence, degrees, gathered)
    shard = sizes.get("hsdp_shard_size")
    if sizes.get("use_hsdp") is True and world == 1 and isinstance(shard, int) and shard > 0:
        # Sharded weights alone: the shards and their replicas are the world.
        world = shard * (reading.count(sizes, "hsdp_replicate_size", path) or 1)
    return world


def _present(stage: Data) -> dict[str, Any]:
    return {key: stage[key] for key in _FLAT_SIZES if stage.get(key) is not None}


def _copies(
    listed: tuple[int, ...] | None, world: int, number: int, path: str, notes: list[Note]
) -> list[tuple[int, ...] | None]:
    """Devices of each replica: the pool cut in pieces, or one piece as a template that is moved on."""
    if listed == ():
        return [()] * number
    if listed is None:
        if number > 1:
            notes.append(_ask_devices(f"{number} replicas need {number * world} devices, and none are listed", path))
        elif world > 1:
            notes.append(_ask_devices(f"{world} ranks need {world} devices, and none are listed", path))
        return [None]
    if len(set(listed)) != len(listed) and number == 1:
        raise ImportProblem(f"{path}.devices lists a device twice: {', '.join(map(str, listed))}")
    if number > 1 and len(listed) == number * world:
        return [listed[i * world : (i + 1) * world] for i in range(number)]
    if len(listed) == world:
        if number > 1 and any(device >= world for device in listed):
            notes.append(_mismatch(listed, world, number, path))
            return [listed]
        return [tuple(copy * world + device for device in listed) if number > 1 else listed for copy in range(number)]
    notes.append(_mismatch(listed, world, number, path))
    return [listed]


def _mismatch(listed: tuple[int, ...], world: int, number: int, path: str) -> Note:
    allowed = str(world) if number == 1 else f"{world} (one replica's) or {number * world} (all of them)"
    return Note(
        NoteKind.ASK,
        NoteReason.DEVICE_COUNT_MISMATCH,
        f"{len(listed)} devices are listed ({', '.join(map(str, listed))}) for {number} "
        f"{'replica' if number == 1 else 'replicas'} of {world} {'rank' if world == 1 else 'ranks'}; {allowed} would "
        "fit. The sums count the stage on all that are listed.",
        f"{path}.devices",
    )


def _ask_devices(why: str, path: str) -> Note:
    return Note(NoteKind.ASK, NoteReason.DEVICES_MISSING, f"{why}.", f"{path}.devices")
