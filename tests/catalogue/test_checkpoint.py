"""Reading a model's folder: exact sizes of good ones, one clear error for bad ones, and nothing outside is opened."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_operator.catalogue import model_sizes
from omni_operator.catalogue.checkpoint import INDEX, read_checkpoint
from omni_operator.catalogue.folder import MAX_JSON, CheckpointError
from omni_operator.catalogue.safetensors import MAX_HEADER
from omni_operator.planning.estimate import Workload, stage_needs
from tests.estimate.layouts import one_h100

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 32,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096,
}
QWEN = {
    "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
    "thinker_config": {
        "text_config": {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
    },
    "talker_config": {
        "text_config": {"num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128},
    },
}
Tensors = dict[str, tuple[str, list[int], int]]


def tensors_file(path: Path, tensors: Tensors) -> None:
    """A safetensors file; its data is a hole, so that big ones cost nothing."""
    header, end = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def model(folder: Path, config: Any = CONFIG, **files: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in files.items():
        tensors_file(folder / f"{name}.safetensors", tensors)
    return folder


def index(folder: Path, weight_map: Any, total: Any = 1000) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))


def test_weights_are_read_from_the_headers(tmp_path: Path) -> None:
    a: Tensors = {"a": ("BF16", [4, 8], 64), "b": ("F32", [2], 8), "c": ("F8_E4M3", [3], 3), "s": ("BF16", [], 2)}
    found = read_checkpoint(model(tmp_path / "m", model=a))
    assert found.exact
    assert found.size.weights == 77
    assert found.size.components["model"].dtype == "bf16"
    assert found.size.context == 4096
    kv = found.size.components["model"].kv
    assert kv is not None
    assert kv.token_bytes() == 2 * 2 * 2 * 2 * 2


def test_shards_are_added_up_and_what_the_index_leaves_out_is_not(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", one={"a": ("BF16", [4], 8)}, two={"b": ("BF16", [2], 4), "x": ("BF16", [9], 18)})
    index(folder, {"a": "one.safetensors", "b": "two.safetensors"})
    found = read_checkpoint(folder)
    assert (found.size.weights, found.tensors) == (12, 2)


def test_the_parts_of_a_known_pipeline_are_told_apart(tmp_path: Path) -> None:
    parts: Tensors = {
        "thinker.model.layers.0.w": ("BF16", [500], 1000),
        "thinker.audio_tower.w": ("BF16", [50], 100),
        "thinker.visual.w": ("BF16", [40], 80),
        "talker.model.w": ("BF16", [100], 200),
        "code2wav.w": ("F32", [5], 20),
    }
    found = read_checkpoint(model(tmp_path / "m", QWEN, model=parts))
    assert found.pipeline == "qwen3_omni"
    sizes = {name: part.weights for name, part in found.size.components.items()}
    assert sizes == {"thinker": 1000, "audio_encoder": 100, "image_encoder": 80, "talker": 200, "code2wav": 20}
    assert found.size.stages["talker_ar"] == ("talker",)
    thinker, talker = found.size.components["thinker"].kv, found.size.components["talker"].kv
    assert thinker is not None
    assert talker is not None
    assert (thinker.token_bytes(), talker.token_bytes()) == (98304, 20480)
    assert found.size.components["code2wav"].kv is None


def test_a_model_that_is_not_downloaded_yet_is_estimated(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    counted = read_checkpoint(folder)
    assert not counted.exact
    assert counted.size.weights == 2 * (2 * (8 * 2 * 2 * (4 + 2) + 3 * 8 * 16 + 16 + 4) + 2 * 32 * 8 + 8)
    index(folder, {"a": "one.safetensors"}, 123456)
    assert read_checkpoint(folder).size.weights == 123456


def test_a_hub_caches_links_to_its_own_blobs_are_followed(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots/abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs/c").write_text(json.dumps(CONFIG))
    tensors_file(repository / "blobs/w", {"a": ("BF16", [4], 8)})
    (snapshot / "config.json").symlink_to("../../blobs/c")
    (snapshot / "model.safetensors").symlink_to("../../blobs/w")
    assert read_checkpoint(snapshot).size.weights == 8
    (tmp_path / "secret").write_text(json.dumps(CONFIG))
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("../../../secret")
    with pytest.raises(CheckpointError, match="leads out"):
        read_checkpoint(snapshot)


def test_a_model_of_60_gb_is_read_in_a_moment(tmp_path: Path) -> None:
    names = [f"model.layers.{n}.mlp.experts.{e}.w" for n in range(48) for e in range(128)]
    folder = model(tmp_path / "m", model={name: ("BF16", [5000, 1000], 10**7) for name in names})
    started = time.perf_counter()
    assert read_checkpoint(folder).size.weights == 48 * 128 * 10**7
    assert time.perf_counter() - started < 1


def _header(folder: Path, data: bytes) -> None:
    (folder / "model.safetensors").write_bytes(data)


def _entry(folder: Path, entry: Any, data: int = 64) -> None:
    text = json.dumps({"a": entry}).encode()
    _header(folder, len(text).to_bytes(8, "little") + text + b"\0" * data)


def _config(folder: Path, text: str | bytes) -> None:
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())


def _link_out(folder: Path, name: str) -> None:
    (folder.parent / "outside").write_text(json.dumps(CONFIG))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("../outside")


def _sparse(folder: Path, size: int) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(size)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "broken JSON": (lambda f: _config(f, '{"a": '), "not JSON.*line 1"),
    "not UTF-8": (lambda f: _config(f, b"\xff\xfe{}"), "not UTF-8"),
    "a list": (lambda f: _config(f, "[]"), "JSON object"),
    "NaN": (lambda f: _config(f, '{"hidden_size": NaN}'), "NaN is not a number"),
    "infinity": (lambda f: _config(f, '{"hidden_size": -Infinity}'), "not a number"),
    "duplicate key": (lambda f: _config(f, '{"a": 1, "a": 2}'), "twice"),
    "endless nesting": (lambda f: _config(f, "[" * 10**6), "nests too deeply"),
    "endless number": (lambda f: _config(f, '{"a": ' + "9" * 10**5 + "}"), "not acceptable"),
    "huge config": (lambda f: _sparse(f, MAX_JSON + 1), "more than"),
    "config missing": (lambda f: (f / "config.json").unlink(), "missing"),
    "config is a folder": (lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()), "regular file"),
    "config is a pipe": (lambda f: ((f / "config.json").unlink(), os.mkfifo(f / "config.json")), "regular file"),
    "config links out": (lambda f: _link_out(f, "config.json"), "leads out"),
    "config links to itself": (
        lambda f: ((f / "config.json").unlink(), (f / "config.json").symlink_to("config.json")),
        "followed|missing|opened",
    ),
    "weights link out": (lambda f: _link_out(f, "model.safetensors"), "leads out"),
    "architectures no list": (lambda f: _config(f, '{"architectures": 7}'), "architectures"),
    "layers no number": (lambda f: _config(f, '{"num_hidden_layers": "x", "hidden_size": 1}'), "config.json"),
    "empty file": (lambda f: _header(f, b""), "too short"),
    "header of 2**63 bytes": (lambda f: _header(f, (2**63).to_bytes(8, "little") + b"{}"), "declares a header"),
    "header of 100 MB": (lambda f: _header(f, (10**8).to_bytes(8, "little") + b"{}"), "declares a header"),
    "header longer than the file": (lambda f: _header(f, (500).to_bytes(8, "little") + b"{}"), "in all"),
    "header no JSON": (lambda f: _header(f, (4).to_bytes(8, "little") + b"abcd"), "not JSON"),
    "unknown dtype": (lambda f: _entry(f, {"dtype": "Q4", "shape": [1], "data_offsets": [0, 1]}), "unknown dtype"),
    "negative shape": (lambda f: _entry(f, {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}), "shape"),
    "float shape": (lambda f: _entry(f, {"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]}), "shape"),
    "offsets backwards": (lambda f: _entry(f, {"dtype": "U8", "shape": [1], "data_offsets": [2, 1]}), "data_offsets"),
    "size that the shape does not give": (
        lambda f: _entry(f, {"dtype": "BF16", "shape": [4], "data_offsets": [0, 9]}),
        "does|not give",
    ),
    "cut off": (lambda f: _entry(f, {"dtype": "U8", "shape": [99], "data_offsets": [0, 99]}), "cut off"),
    "entry no object": (lambda f: _entry(f, 7), "object"),
    "index without a map": (lambda f: index(f, {}), "weight_map"),
    "index leads up": (lambda f: index(f, {"a": "../outside.safetensors"}), "not a safetensors file of the folder"),
    "index leads to the root": (lambda f: index(f, {"a": "/etc/passwd"}), "not a safetensors file"),
    "index names no text": (lambda f: index(f, {"a": 7}), "not a safetensors file"),
    "shard missing": (
        lambda f: index(f, {"a": "model.safetensors", "b": "gone.safetensors"}),
        "1 of the files.*gone.safetensors",
    ),
    "tensor missing": (
        lambda f: index(f, {"a": "model.safetensors", "z": "model.safetensors"}),
        "'z' is in .* in none",
    ),
    "pickled weights": (
        lambda f: ((f / "model.safetensors").unlink(), (f / "pytorch_model.bin").write_bytes(b"x")),
        "pickled",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_one_clear_error_at_once(tmp_path: Path, name: str) -> None:
    spoil, message = BAD[name]
    folder = model(tmp_path / "m", model={"a": ("BF16", [4], 8)})
    spoil(folder)
    started = time.perf_counter()
    with pytest.raises(CheckpointError, match=message) as caught:
        read_checkpoint(folder)
    assert time.perf_counter() - started < 1
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("path", ["", "/nowhere/at/all", "a\0b"])
def test_what_is_no_folder_is_said(path: str) -> None:
    with pytest.raises(CheckpointError):
        read_checkpoint(path or __file__)


def test_two_tensors_in_one_place_are_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    text = json.dumps({"a": entry, "b": entry}).encode()
    _header(folder, len(text).to_bytes(8, "little") + text + b"\0" * 4)
    with pytest.raises(CheckpointError, match="overlap"):
        read_checkpoint(folder)


def test_headers_stay_below_the_formats_own_limit() -> None:
    assert MAX_HEADER < 10**8


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300), st.one_of(st.none(), st.binary(max_size=60)))
def test_no_bytes_bring_anything_but_a_clear_error(
    tmp_path: Path, data: bytes, length: int, config: bytes | None
) -> None:
    folder = model(tmp_path / "m")
    _header(folder, length.to_bytes(8, "little") + data)
    if config is not None:
        _config(folder, config)
    with suppress(CheckpointError):
        read_checkpoint(folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__"),
        st.lists(st.integers(0, 9), max_size=4),
        max_size=8,
    )
)
def test_the_sum_is_that_of_the_tensors(tmp_path: Path, shapes: dict[str, list[int]]) -> None:
    tensors: Tensors = {}
    for name, shape in shapes.items():
        size = 2
        for dimension in shape:
            size *= dimension
        tensors[name] = ("BF16", shape, size)
    found = read_checkpoint(model(tmp_path / "m", model=tensors))
    assert found.size.weights == sum(size for _, _, size in tensors.values())


def test_an_index_may_write_its_total_as_a_float(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    index(folder, {"a": "one.safetensors"}, 1.5e10)
    assert read_checkpoint(folder).size.weights == 15 * 10**9
    for total in (None, "many", True, -1, 0.5):
        index(folder, {"a": "one.safetensors"}, total)
        with pytest.raises(CheckpointError, match="total_size"):
            read_checkpoint(folder)


def test_a_folder_gives_the_same_estimate_as_the_catalogues_size(tmp_path: Path) -> None:
    size = model_sizes()["qwen/qwen3-omni-30b-a3b-instruct"]
    prefixes = {
        "thinker": "thinker.model.",
        "audio_encoder": "thinker.audio_tower.",
        "image_encoder": "thinker.visual.",
    }
    tensors: Tensors = {
        prefixes.get(name, f"{name}.") + "w": ("BF16", [part.weights // 2], part.weights)
        for name, part in size.components.items()
    }
    read = read_checkpoint(model(tmp_path / "m", QWEN, model=tensors)).size
    for share in ("70%", "78%", "85%"):
        layout = one_h100(share)
        assert stage_needs(layout, read, Workload(32768)) == stage_needs(layout, size, Workload(32768))
