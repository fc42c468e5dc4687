"""What sglang-omni's four forms have in common: the fields around the stages, and what 0.1.9 says to the file.

Upstream's own reading is `sglang_omni/config/sources.py` and `schema.py` of 0.1.9. It keeps one form, the `stages`
mapping, and refuses the others by name; fields that a class does not know are refused too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omni_operator.api.quantities import Budget, Share
from omni_operator.importing import reading
from omni_operator.importing.found import Form, Found, FoundStage
from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.importing.percent import percent_text
from omni_operator.importing.reading import Data

VERSION = "0.1.9"

READ = frozenset(
    {"config_cls", "model_path", "name", "stages", "processes", "mps", "weight_share", "placement", "shared"}
)
"""Top-level fields that become part of the OmniModel."""
KNOWN = READ | {
    "audio_chunking", "stream_delivery", "env_defaults", "placement_policy", "endpoints", "terminal_stages_fn",
    "session_nodes", "session_publish", "max_output_lead_ms", "services",
}  # fmt: skip
"""Top-level fields that 0.1.9 accepts."""
OLD = frozenset(
    {
        "stage_overrides", "runtime_overrides", "entry_stage", "relay_backend", "fused_stages", "gpu_placement",
        "terminal_stages", "completion_endpoint", "abort_endpoint",
    }
)  # fmt: skip
"""Top-level fields of earlier versions."""
ENGINE_SIZE_KEYS = ("mem_fraction_static", "kv_cache_bytes")
"""Engine arguments that the operator derives from gpuMemory and kvCache."""
PLACED = frozenset({
    "model_path", "tokenizer_path", "tp_size", "tp_rank", "base_gpu_id", "gpu_id", "device", "nccl_port",
    "server_args_overrides", "total_gpu_memory_fraction", "process_total_gpu_memory_fraction",
})  # fmt: skip
"""Arguments of engines and factories that follow from the model and from where a stage is: no user gives them."""


def found(form: Form, data: Data, stages: Iterable[FoundStage], notes: Iterable[Note] = ()) -> Found:
    """A file of any of the four forms, given its stages."""
    listed = list(notes)
    placement = reading.mapping(data, "placement")
    limit = reading.share(placement, "max_total_gpu_memory_fraction_per_gpu", "placement")
    if placement.get("require_memory_fraction_for_colocation") is False:
        listed.append(
            _dropped(
                "placement.require_memory_fraction_for_colocation",
                "stages that share a GPU need budgets here, so that their sum means something",
            )
        )
    mps = reading.on_off(data, "mps")
    if mps not in (None, "off", "on", "auto"):
        raise ImportProblem(f"mps must be off, on or auto, not {reading.shown(mps)}")
    weight_share = reading.on_off(data, "weight_share")
    if weight_share not in (None, "off", "on"):
        raise ImportProblem(f"weight_share must be off or on, not {reading.shown(weight_share)}")
    return Found(
        form=form,
        stages=tuple(stages),
        notes=(*listed, *_field_notes(data)),
        name=reading.text(data, "name"),
        model=reading.text(data, "model_path"),
        config_class=reading.text(data, "config_cls"),
        max_share=None if limit is None else percent_text(limit.value)[0],
        mps=mps,
        weight_share=weight_share == "on",
        replicas=_replicas(data),
    )


def stage(
    name: str,
    path: str,
    body: Data,
    *,
    budget: Budget | None,
    engine: Data,
    factory: Data,
    devices: tuple[int, ...] | None = None,
    copies: tuple[tuple[int, ...], ...] = (),
) -> FoundStage:
    """A stage from its parts. `engine` are SGLang's server arguments, `factory` those of the stage's factory; a stage
    takes both by name, and where both give one, the engine's counts."""
    engine = {**reading.mapping(factory, "server_args_overrides", f"{path}.factory"), **engine}
    kv_cache, _ = reading.amount(engine, "kv_cache_bytes", f"{path}.engine")
    static = engine.get("mem_fraction_static")
    arguments = {
        key: reading.plain(value)
        for key, value in {**_given(factory), **_given(engine)}.items()
        if key not in PLACED and key not in ENGINE_SIZE_KEYS
    }
    return FoundStage(
        name=name,
        path=path,
        devices=_devices_of(body, path) if devices is None else devices,
        ranks=reading.count(body, "tp_size", path),
        budget=budget,
        kv_cache=None if kv_cache is None else kv_cache.value,
        process=reading.text(body, "process", path),
        copies=copies,
        static_fraction=None if static is None else reading.shown(static),
        token_cap=kv_cache is not None or engine.get("max_total_tokens") is not None,
        engine_args=arguments,
        env=_env(body, path),
    )


def _given(arguments: Data) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if value is not None}


def budget(path: str, data: Data, share_key: str, notes: list[Note]) -> Budget | None:
    """A stage's budget: a share, or bytes under `total_reserve_bytes`; upstream refuses both together."""
    share: Share | None = reading.share(data, share_key, path)
    amount, as_upstream = reading.amount(data, "total_reserve_bytes", path)
    if amount is None:
        return share
    if share is not None:
        raise ImportProblem(
            f"{path} gives one budget twice, as {share_key} and as total_reserve_bytes. Keep one of them"
        )
    field = f"{path}.total_reserve_bytes"
    if not as_upstream:
        notes.append(
            refused(f"sizes are whole numbers with KiB, MiB, GiB or TiB, such as 9GiB; it says "
                    f"{reading.shown(data['total_reserve_bytes'])}", field)
        )  # fmt: skip
    said = reading.shown(data["total_reserve_bytes"])
    notes.append(Note(NoteKind.UNIT, NoteReason.UNIT, f"{said} is {amount} in Kubernetes' units.", field))
    return amount


def refused(why: str, field: str = "", reason: NoteReason = NoteReason.UNKNOWN_FIELD) -> Note:
    """sglang-omni 0.1.9 would not read this."""
    message = f"sglang-omni {VERSION} and later refuse this: {why}."
    return Note(NoteKind.REFUSED_UPSTREAM, reason, message, field, VERSION)


def _dropped(field: str, why: str) -> Note:
    return Note(NoteKind.NOT_CARRIED, NoteReason.NOT_SUPPORTED, f"Not carried over: {why}.", field)


def unused(data: Data, path: str, keys: Iterable[str], why: str) -> list[Note]:
    """Notes for fields that upstream reads and an OmniModel has no place for."""
    return [_dropped(reading.at(path, key), why) for key in keys if data.get(key) not in (None, [], {}, False, "")]


def unknown(data: Data, path: str, known: Iterable[str]) -> list[Note]:
    """Notes for fields that no version reads."""
    return [
        refused(f"{key} is no field of it" + (f"; {guess} is" if guess else ""), reading.at(path, key))
        for key, guess in reading.unknown_keys(data, known).items()
    ]


def _field_notes(data: Data) -> list[Note]:
    notes = [
        refused(f"{key} is no field of it any more", key, NoteReason.OLD_FORM)
        for key in sorted(OLD & data.keys() - {"stage_overrides", "runtime_overrides"})
    ]
    if "relay_backend" in data:
        notes.append(_dropped("relay_backend", "the operator chooses how data goes between pods"))
    notes += unused(data, "", ("fused_stages",), "give the fused stages one process")
    notes += unused(
        data, "", sorted(KNOWN - READ), "the operator decides this itself, or the catalogue's pipeline does"
    )
    for key, guess in reading.unknown_keys(data, KNOWN | OLD).items():
        hint = f"; {guess} is" if guess else "; the pipeline's class may have it of its own"
        notes.append(refused(f"{key} is no field that every pipeline has{hint}", key))
    return notes


def _replicas(data: Data) -> Mapping[str, tuple[int, tuple[int, ...] | None]]:
    result: dict[str, tuple[int, tuple[int, ...] | None]] = {}
    processes = reading.mapping(data, "processes")
    for name in processes:
        path = f"processes.{name}"
        body = reading.mapping(processes, name, "processes")
        number = reading.count(body, "num_replicas", path) or 1
        result[name] = (number, reading.devices(body, "replica_devices", path))
    return result


def _devices_of(body: Data, path: str) -> tuple[int, ...] | None:
    own = reading.devices(body, "runtime_gpu_ids", path)
    if own is not None:
        return own
    if "gpu" in body and body["gpu"] is None:
        return ()
    return reading.devices(body, "gpu", path)


def _env(body: Data, path: str) -> dict[str, str]:
    result = {}
    for key, value in reading.mapping(body, "env", path).items():
        if isinstance(value, dict | list):
            raise ImportProblem(f"{path}.env.{key} must be text, not {reading.shown(value)}")
        result[key] = _env_text(value)
    return result


def _env_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
