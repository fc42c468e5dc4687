"""A model's size from its folder: config.json, the index, and the safetensors headers. No tensor is loaded.

Where the files are there, weights are exact to the byte. Where only config.json and the index are there (a model that
is not downloaded yet), the index's total is taken; with config.json alone the decoder is counted from its shape.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_operator.catalogue.files import data_yaml
from omni_operator.catalogue.folder import CheckpointError, ModelFolder, shown
from omni_operator.catalogue.pipelines import pipelines
from omni_operator.catalogue.safetensors import NAMES, Tensor, read_tensors
from omni_operator.catalogue.shapes import DTYPE_BITS, KvShape, ShapeError, decoder_shape, dtype_name, kv_shape
from omni_operator.catalogue.sizes import Component, ModelSize, weight_bytes

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WHOLE = "model"
"""The one component of a model whose parts are not known."""
MAX_SHARDS = 2000
TEXT_CONFIGS = ((), ("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"))
"""Where configurations keep the shape of their decoder."""


@dataclass(frozen=True)
class Checkpoint:
    """What a model's folder says of it."""

    size: ModelSize
    architectures: tuple[str, ...]
    pipeline: str | None
    """Found from the architecture, where one serves it."""
    exact: bool
    """Whether weights were read from the tensors' own headers."""
    tensors: int


def read_checkpoint(path: Path | str, pipeline: str | None = None) -> Checkpoint:
    """The size of the model in a folder; `pipeline` says how its stages load it. Raises CheckpointError."""
    folder = ModelFolder(path)
    if not folder.has(CONFIG):
        raise CheckpointError(f"{CONFIG} is missing: {folder.path.name!r} is not a model's folder")
    config = folder.json(CONFIG)
    architectures = _architectures(config)
    pipeline = pipeline or _pipeline_of(architectures)
    tensors = _tensors(folder)
    if tensors is None:
        components = {WHOLE: _from_index_or_shape(folder, config)}
    else:
        components = _components(tensors, config, pipeline)
    size = ModelSize(folder.path.name, components, _stages(components, pipeline), _context(config), str(folder.path))
    return Checkpoint(size, architectures, pipeline, tensors is not None, len(tensors or ()))


def _tensors(folder: ModelFolder) -> tuple[Tensor, ...] | None:
    """All tensors; None where the folder has an index or a configuration only."""
    if folder.has(INDEX):
        wanted = _index(folder)
        missing = [name for name in sorted(set(wanted.values())) if not folder.has(name)]
        if len(missing) == len(set(wanted.values())):
            return None
        if missing:
            raise CheckpointError(
                f"{len(missing)} of the files that {INDEX} names are missing, first {shown(missing[0])}"
            )
        tensors = tuple(tensor for name in sorted(set(wanted.values())) for tensor in read_tensors(folder, name))
        return _checked(tensors, wanted)
    names = folder.names(".safetensors")
    if not names:
        if folder.names(".bin"):
            raise CheckpointError("the weights are pickled (.bin); only safetensors files are read")
        return None
    if len(names) > MAX_SHARDS:
        raise CheckpointError(f"{len(names)} safetensors files; at most {MAX_SHARDS} are read")
    return tuple(tensor for name in names for tensor in read_tensors(folder, name))


def _index(folder: ModelFolder) -> Mapping[str, str]:
    """File by tensor, as the index says. Names that lead out are refused even where nothing lies there."""
    weight_map = folder.json(INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX} has no weight_map")
    for name in weight_map.values():
        plain = isinstance(name, str) and name.endswith(".safetensors") and not {"/", "\\", "\0"} & set(name)
        if not plain:
            raise CheckpointError(f"{INDEX} names {shown(str(name))}, which is not a safetensors file of the folder")
    if len(set(weight_map.values())) > MAX_SHARDS:
        raise CheckpointError(f"{INDEX} names more than {MAX_SHARDS} files")
    return weight_map


def _checked(tensors: tuple[Tensor, ...], wanted: Mapping[str, str]) -> tuple[Tensor, ...]:
    """The tensors that the index names: what else lies in the files is not loaded."""
    found = Counter(tensor.name for tensor in tensors)
    lost = next((name for name in wanted if name not in found), None)
    if lost is not None:
        raise CheckpointError(f"tensor {shown(lost)} is in {INDEX} but in none of its files")
    twice = next((name for name, times in found.items() if times > 1), None)
    if twice is not None:
        raise CheckpointError(f"tensor {shown(twice)} is in two files")
    return tuple(tensor for tensor in tensors if tensor.name in wanted)


def _components(tensors: tuple[Tensor, ...], config: Mapping[str, Any], pipeline: str | None) -> dict[str, Component]:
    rules = data_yaml("checkpoints.yaml").get(pipeline, {}).get("components", {})
    prefixes = {prefix: name for name, rule in rules.items() for prefix in rule["prefixes"]}
    grouped: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        prefix = max((p for p in prefixes if tensor.name.startswith(p)), key=len, default="")
        grouped[prefixes.get(prefix, WHOLE)].append(tensor)
    return {name: _component(name, grouped[name], config, rules.get(name)) for name in sorted(grouped)}


def _component(
    name: str, tensors: list[Tensor], config: Mapping[str, Any], rule: Mapping[str, Any] | None
) -> Component:
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[NAMES.get(tensor.dtype, "")] += tensor.size
    dtype = max(sizes, key=lambda key: (sizes[key], key))
    kv = _kv(config, rule)
    spread = True if rule is None else rule.get("spread", True)
    return Component(name, sum(sizes.values()), dtype if dtype in DTYPE_BITS else "bf16", kv, spread)


def _kv(config: Mapping[str, Any], rule: Mapping[str, Any] | None) -> KvShape | None:
    """The cache's shape where the configuration has it; where it has none of that name, there is no cache."""
    if rule is not None and "config" not in rule:
        return None
    places = TEXT_CONFIGS if rule is None else (tuple(rule["config"]),)
    for place in places:
        found = _at(config, place)
        if found is not None and ({"num_hidden_layers", "n_layers", "n_layer"} & set(found)):
            try:
                return kv_shape(found)
            except ShapeError as error:
                raise CheckpointError(f"{CONFIG}: {'.'.join((*place, ''))}{error}") from error
    return None


def _from_index_or_shape(folder: ModelFolder, config: Mapping[str, Any]) -> Component:
    """Weights that are not there yet: the index's total, or the decoder counted from its shape."""
    kv = _kv(config, None)
    dtype = _dtype(config)
    if folder.has(INDEX):
        metadata = folder.json(INDEX).get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        # Some tools write the total as 1.5e10.
        if not isinstance(total, int | float) or isinstance(total, bool) or not 0 < total < 2**53 or total % 1:
            raise CheckpointError(f"{INDEX} has no metadata.total_size, and none of its files is here")
        return Component(WHOLE, int(total), dtype, kv)
    for place in TEXT_CONFIGS:
        found = _at(config, place)
        if found is not None and "vocab_size" in found:
            try:
                return Component(WHOLE, weight_bytes(decoder_shape(found).parameters, dtype), dtype, kv)
            except ShapeError as error:
                raise CheckpointError(f"{CONFIG}: {'.'.join((*place, ''))}{error}") from error
    raise CheckpointError(f"{CONFIG} gives no shape of a decoder, and there are no safetensors files")


def _stages(components: Mapping[str, Component], pipeline: str | None) -> dict[str, tuple[str, ...]]:
    rules = data_yaml("checkpoints.yaml").get(pipeline, {}).get("stages", {})
    if rules:
        return {stage: known for stage, names in rules.items() if (known := tuple(n for n in names if n in components))}
    known_pipeline = pipelines().get(pipeline or "")
    if known_pipeline is None:
        return {}
    engines = {s.name for variant in known_pipeline.variants.values() for s in variant.stages if s.engine}
    return {next(iter(engines)): tuple(components)} if len(engines) == 1 else {}


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    found = config.get("architectures") or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise CheckpointError(f"{CONFIG}: architectures is not a list of names")
    return tuple(found)


def _pipeline_of(architectures: tuple[str, ...]) -> str | None:
    for name, pipeline in pipelines().items():
        if set(architectures) & set(pipeline.architectures):
            return name
    return None


def _dtype(config: Mapping[str, Any]) -> str:
    for place in TEXT_CONFIGS:
        found = _at(config, place) or {}
        name = found.get("dtype") or found.get("torch_dtype")
        if name is not None:
            try:
                return dtype_name(str(name))
            except ShapeError as error:
                raise CheckpointError(f"{CONFIG}: {error}") from error
    return "bf16"


def _context(config: Mapping[str, Any]) -> int | None:
    for place in TEXT_CONFIGS:
        value = (_at(config, place) or {}).get("max_position_embeddings")
        if type(value) is int and 0 < value < 2**31:
            return value
    return None


def _at(config: Mapping[str, Any], place: tuple[str, ...]) -> Mapping[str, Any] | None:
    found: Any = config
    for key in place:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None
