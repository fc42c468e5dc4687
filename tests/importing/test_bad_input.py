"""Bad input ends in an ImportProblem that says where and what, at once, and nothing outside the folder is read."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_operator.importing import Imported, ImportProblem, import_file, import_text
from omni_operator.importing.document import MAX_BYTES, parse

LIMIT = 2.0
"""Seconds for the worst text. Most take a thousandth of that."""
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(20)
)
STAGE = "config_cls: Qwen3OmniPipelineConfig\nmodel_path: m\nstages:\n  thinker: {{{}}}\n"


def refusal(content: str | bytes, source: str = "f.yaml") -> ImportProblem:
    started = time.monotonic()
    with pytest.raises(ImportProblem) as caught:
        import_text(content, source=source)
    assert time.monotonic() - started < LIMIT
    return caught.value


@pytest.mark.parametrize(
    ("content", "line", "column", "words"),
    [
        pytest.param("a: [1, 2\nb: {\n", 2, 2, "not valid YAML", id="broken"),
        pytest.param("a:\n\t- b\n", 2, 1, "not valid YAML", id="tab"),
        pytest.param("a: 1\nb: 2\na: 3\n", 3, 1, "'a' is given twice", id="duplicate key"),
        pytest.param("a: 1\n---\nb: 2\n", 2, 1, "second document", id="several documents"),
        pytest.param("apiVersion: v1\nkind: Pod\n---\nb: 2\n", 3, 1, "Kubernetes manifests", id="manifests"),
        pytest.param(BOMB, 5, None, "aliases", id="alias bomb"),
        pytest.param("a: &a\n  b: *a\n", 2, 6, "stands within its own", id="alias loop"),
        pytest.param("x: 1\ny: .nan\n", 2, 4, "not a number", id="nan"),
        pytest.param("y: -.inf\n", 1, 4, "not a number", id="infinity"),
        pytest.param("a: !!python/object/apply:os.system ['x']", 1, 4, "not supported", id="python tag"),
        pytest.param("a: !env X", 1, 4, "'!env' is not supported", id="own tag"),
        pytest.param("a: !!set {b, c}", 1, 4, "not supported", id="set"),
        pytest.param("? [a, b]\n: c\n", 1, 3, "a key must be plain text", id="list as key"),
        pytest.param("<<: [1]\n", 1, 1, "merges mappings only", id="merge of a number"),
        pytest.param("a: " + "9" * 5000, 1, 4, "too long", id="huge number"),
        pytest.param("a: \x00b", 1, None, "control characters", id="control character"),
        pytest.param("%YAML 9.9\n---\na: 1", 1, 1, "not valid YAML", id="other YAML version"),
        pytest.param("{a: " * 200_000, None, None, "more than 40 levels", id="deep flow"),
        pytest.param("".join(" " * i + "a:\n" for i in range(200)), None, None, "more than 40", id="deep blocks"),
    ],
)
def test_yaml_is_refused_with_its_place(content: str, line: int | None, column: int | None, words: str) -> None:
    problem = refusal(content)
    assert words in problem.message
    assert line is None or problem.line == line
    assert column is None or problem.column == column
    assert str(problem).startswith("f.yaml:")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("", "nothing but comments", id="empty"),
        pytest.param("# only this\n", "nothing but comments", id="comments"),
        pytest.param("- a\n", "holds a list", id="list"),
        pytest.param("hello", "single value", id="scalar"),
        pytest.param("[" * 10_000_000, "bytes", id="10 MB of nesting"),
        pytest.param("a: 1".encode("utf-16"), "UTF-16", id="UTF-16"),
        pytest.param("a: é".encode("latin-1"), "not UTF-8", id="Latin-1"),
        pytest.param(b"\x7fELF\x02\x01\x01\xff", "not UTF-8", id="a program"),
        pytest.param("a: b\n" * 1, "no configuration", id="unknown fields"),
        pytest.param("stage_args: []", "empty", id="no stages"),
        pytest.param("async_chunk: true", "no stages", id="deploy file without stages"),
        pytest.param("config_cls: A\nmodel_path: m\nstage_args: [{stage_id: 0}]", "mixes two forms", id="two engines"),
        pytest.param("config_cls: A\nstage_overrides: {}\nstages: {}", "mixes two forms", id="old and new"),
        pytest.param("launcher: {num_workers: 2}", "router", id="router"),
        pytest.param("apiVersion: omnimodel.io/v1alpha1\nkind: OmniModel\n", "already", id="an OmniModel"),
        pytest.param('{"architectures": ["A"], "model_type": "a", "hidden_size": 8}', "config.json", id="config.json"),
        pytest.param("services: {a: {image: b}}", "Compose", id="compose"),
        pytest.param("stages: [{stage_id: 0}, {stage_id: 0}]", "two stages with stage_id 0", id="same id"),
        pytest.param("stages: [{stage_id: 0}, {devices: 0}]", "no stage_id", id="no id"),
        pytest.param("stages: [{stage_id: 0, devices: GPU-12ab}]", "logical device index", id="device UUID"),
        pytest.param("stages: [{stage_id: 0, devices: -1}]", "logical device index", id="negative device"),
        pytest.param("stages: [{stage_id: 0, devices: '${oc.env:D}'}]", "variables", id="interpolation"),
        pytest.param("stages: [{stage_id: 0, num_replicas: 99999}]", "whole number", id="many replicas"),
        pytest.param("stages: [{stage_id: 0, gpu_memory_utilization: 90}]", "write 0.9", id="percent as number"),
        pytest.param("stages: [{stage_id: 0, gpu_memory_utilization: 0}]", "above 0", id="no share"),
        pytest.param("stages: [{stage_id: 0, gpu_memory_utilization: true}]", "fraction", id="boolean share"),
        pytest.param("stages: {0: {stage_id: 0}}\nplatforms: {}", "must be a list", id="stages as mapping"),
        pytest.param("base_config: other.yaml", "no folder was given", id="base of a text"),
        pytest.param('{"a": NaN}', "not a number", id="JSON NaN"),
        pytest.param('{"a": 1e999999}', "out of every range", id="JSON infinity"),
        pytest.param('{"0": {}, "0": {}}', "given twice", id="JSON duplicate key"),
        pytest.param('{"a":' * 100_000, "more than 40 levels", id="JSON nesting"),
        pytest.param(STAGE.format("gpu_memory_fraction: 1e9 %"), "fraction of the card", id="1e9 %"),
        pytest.param(STAGE.format("gpu_memory_fraction: 78%"), "write 0.78", id="percent"),
        pytest.param(STAGE.format("gpu_memory_fraction: 1.5"), "at most 1", id="more than a card"),
        pytest.param(STAGE.format("total_reserve_bytes: 4GB"), "write 4GiB", id="4GB"),
        pytest.param(STAGE.format("total_reserve_bytes: 0"), "above 0", id="no bytes"),
        pytest.param(STAGE.format("gpu_memory_fraction: 0.5, total_reserve_bytes: 4GiB"), "twice", id="two units"),
        pytest.param(STAGE.format("gpu_memory_fraction: 1e-300"), "too small", id="nothing of a card"),
        pytest.param(STAGE.format("env: {'A B': x}"), "no valid OmniModel", id="variable name"),
        pytest.param("config_cls: A\nmps: maybe", "mps must be", id="mps"),
    ],
)
def test_what_is_wrong_is_named(content: str | bytes, words: str) -> None:
    assert words in refusal(content).message


def test_broken_json_has_line_and_column_too() -> None:
    problem = refusal('{\n "0": {"devices": "0"\n', source="overrides.json")
    assert (problem.line, "not valid JSON" in problem.message) == (3, True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside.yaml").write_text("stages: [{stage_id: 0, devices: 0, gpu_memory_utilization: 0.5}]")
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "base.yaml").write_text("stages: [{stage_id: 0, devices: 0, gpu_memory_utilization: 0.25}]")
    return inside


def write(file: Path, base: object) -> Path:
    file.write_text(yaml.safe_dump({"base_config": base}))
    return file


def file_refusal(file: Path, **options: Any) -> str:
    with pytest.raises(ImportProblem) as caught:
        import_file(file, **options)
    return caught.value.message


def test_a_base_in_the_folder_is_read(folder: Path) -> None:
    assert import_file(write(folder / "a.yaml", "base.yaml")).layout.slots == (0,)
    assert import_file(write(folder / "sub/b.yaml", "../base.yaml"), root=folder).layout.slots == (0,)


def test_a_base_outside_of_the_folder_is_not_read(folder: Path) -> None:
    for base in ("../outside.yaml", str(folder.parent / "outside.yaml"), "/etc/passwd", "sub/../../outside.yaml"):
        assert "leads out of the folder" in file_refusal(write(folder / "a.yaml", base))
    assert "leads out of the folder" in file_refusal(write(folder / "sub/b.yaml", "../base.yaml"))


def test_links_do_not_lead_out_of_the_folder(folder: Path) -> None:
    (folder / "link.yaml").symlink_to(folder.parent / "outside.yaml")
    (folder / "up").symlink_to(folder.parent)
    for base in ("link.yaml", "up/outside.yaml"):
        assert "leads out of the folder" in file_refusal(write(folder / "a.yaml", base))
    assert "outside of the folder" in file_refusal(folder / "link.yaml", root=folder)


def test_links_within_the_folder_are_followed(folder: Path) -> None:
    (folder / "link.yaml").symlink_to("base.yaml")
    assert import_file(write(folder / "a.yaml", "link.yaml")).layout.slots == (0,)


def test_a_circle_of_bases_is_refused(folder: Path) -> None:
    write(folder / "a.yaml", "b.yaml")
    write(folder / "b.yaml", "sub/../a.yaml")
    assert "circle" in file_refusal(folder / "a.yaml")
    assert "circle" in file_refusal(write(folder / "self.yaml", "self.yaml"))


def test_a_circle_through_a_link_ends_too(folder: Path) -> None:
    (folder / "again").symlink_to(folder)
    message = file_refusal(write(folder / "a.yaml", "again/a.yaml"))
    assert "circle" in message or "more than" in message


def test_a_long_chain_of_bases_is_refused(folder: Path) -> None:
    for i in range(40):
        write(folder / f"{i}.yaml", f"{i + 1}.yaml")
    assert "more than 16 files" in file_refusal(folder / "0.yaml")


def test_files_that_are_none_are_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe.yaml")
    started = time.monotonic()
    for file in (folder, folder / "pipe.yaml", folder / "missing.yaml", Path("/dev/zero"), folder / ("x" * 300)):
        assert file_refusal(file)
    for base in ("pipe.yaml", "missing.yaml", "sub", "", "a\0b", 7, ["base.yaml"]):
        assert file_refusal(write(folder / "a.yaml", base))
    assert time.monotonic() - started < LIMIT


def test_big_files_are_not_read(folder: Path) -> None:
    (folder / "big.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    assert "bytes" in file_refusal(folder / "big.yaml")


def same_verdict(read: Callable[[], Imported]) -> None:
    """An import or a problem, never another error, and soon."""
    started = time.monotonic()
    with contextlib.suppress(ImportProblem):
        json.dumps(read().manifest)
    assert time.monotonic() - started < LIMIT


SPLINTERS = [b"", b"&a ", b"*a", b"{", b"]", b"\n", b"null", b"-1", b"1e9", b"'", b": ", b"- ", b"\xff", b"!!x "]
QUIET = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PUBLISHED = sorted((Path(__file__).parent / "data").rglob("*.yaml"))


@QUIET
@given(st.binary(max_size=400) | st.text(max_size=400))
def test_any_text_ends_well(content: str | bytes) -> None:
    same_verdict(lambda: import_text(content))


@QUIET
@given(st.sampled_from(PUBLISHED), st.data())
def test_any_change_of_a_published_file_ends_well(file: Path, data: st.DataObject) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 6))] = data.draw(st.sampled_from(SPLINTERS))
    same_verdict(lambda: import_text(bytes(content)))


LEAVES = (
    st.none() | st.booleans() | st.integers(-5, 5000) | st.text(max_size=6)
    | st.sampled_from(["0", "0,1", "cpu", "cuda:0", "9GiB", "4Gi", "78%", "on", "0.5", 0.5, 0.25, 1.5, []])
)  # fmt: skip
KEYS = st.sampled_from(
    ["stages", "stage_args", "stage_id", "devices", "gpu_memory_utilization", "engine_args", "runtime", "num_replicas",
     "config_cls", "model_path", "processes", "replica_devices", "mps", "weight_share", "thinker", "gpu", "tp_size",
     "gpu_memory_fraction", "total_reserve_bytes", "engine", "factory", "env", "shared", "select", "platforms", "npu",
     "connectors", "parallel_config", "tensor_parallel_size", "stage_overrides", "runtime_overrides", "name",
     "pipeline", "pd_disaggregation", "prefill", "placement", "base_config", "0", "1", "resources"]
)  # fmt: skip
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(KEYS, TREES, max_size=6),
    st.sampled_from(["", "config_cls: Qwen3OmniPipelineConfig", "config_cls: S2ProPipelineConfig", "config_cls: None"]),
)
def test_any_data_under_known_fields_ends_well(data: dict[str, Any], head: str) -> None:
    key, _, value = head.partition(": ")
    text = json.dumps({**data, **({key: value} if key else {})})
    same_verdict(lambda: import_text(text))


@QUIET
@given(TREES)
def test_yaml_and_json_are_read_alike(tree: Any) -> None:
    """Plain data, dumped in either language, comes back the same.

    Escaped, since YAML 1.1 itself reads a raw U+0085 as a line break.
    """
    data = {"x": tree}
    assert parse(yaml.safe_dump(data)) == parse(json.dumps(data))
