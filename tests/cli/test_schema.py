"""The light reader of specs says what the API server says, and reads what the models read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.api.yaml_events import Path
from omni_operator.cli.schema import RULES, faults, schema, show, view
from omni_operator.cli.schema_file import schema_text
from omni_operator.planning.budget import check
from omni_operator.planning.resolve import resolve
from tests.conftest import ROOT

FULL: dict[str, Any] = {
    "engine": "sglang-omni",
    "model": {
        "id": "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        "variant": "speech-colocated",
        "cache": {"persistentVolumeClaim": {"claimName": "models"}},
        "tokenSecretRef": {"name": "hub", "key": "token"},
    },
    "gpus": {
        "card": "h100-80gb",
        "selector": "true",
        "placement": "SameNode",
        "sharing": {"strategy": "MPS", "backend": "DRA", "multiUser": True},
        "maxShare": "100%",
    },
    "stages": [
        {"name": "thinker", "gpus": [0], "gpuMemory": "78%", "kvCache": "8Gi", "engineArgs": {"a": {"b": [1, None]}}},
        {"name": "talker_ar", "gpus": [0], "gpuMemory": "10%", "env": [{"name": "A", "value": "b"}]},
        {"name": "code2wav", "gpus": [0], "gpuMemory": "1600Mi", "process": "x", "startupTimeout": "45m"},
        {"name": "image_encoder", "gpus": [0], "gpuMemory": 1717986918, "computePercentage": 20, "startOrder": 1},
        {"name": "audio_encoder", "gpus": [0], "gpuMemory": "2%", "tensorParallelSize": 1,
         "resources": {"limits": {"cpu": 2}}},
    ],
    "replicas": 1,
    "frontend": {"port": 8000},
    "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    "development": {"device": "cpu"},
}  # fmt: skip


def test_the_schema_is_generated_from_the_models() -> None:
    """`python -m omni_operator.cli.schema_file > operator/omni_operator/cli/data/omnimodel-schema.json`."""
    kept = (ROOT / "operator/omni_operator/cli/data/omnimodel-schema.json").read_text(encoding="utf-8")
    assert kept == schema_text()


def cel_rules(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {rule["rule"] for rule in node.get("x-kubernetes-validations", ())}
        return own.union(*(cel_rules(value) for value in node.values())) if node else own
    return set().union(*(cel_rules(item) for item in node)) if isinstance(node, list) and node else set()


def test_every_cel_rule_has_a_counterpart() -> None:
    assert cel_rules(schema()) == set(RULES)


def test_a_spec_without_faults() -> None:
    assert faults(FULL) == ()


def changed(path: Path, value: Any) -> dict[str, Any]:
    spec = copy.deepcopy(FULL)
    target: Any = spec
    for step in path[:-1]:
        target = target[step]
    if value is ...:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return spec


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("stages", 0, "gpuMemry"), "1%", "spec.stages[0].gpuMemry: unknown field; did you mean gpuMemory?"),
        (("gpu",), {}, "spec.gpu: unknown field; did you mean gpus?"),
        (("stages", 0, "gpuMemory"), "4GB", "spec.stages[0].gpuMemory: '4GB' is not a Kubernetes quantity; write 4G"),
        (("stages", 0, "gpuMemory"), "101%", "spec.stages[0].gpuMemory: '101%' is more than a whole card"),
        (("stages", 0, "gpuMemory"), "0%", "spec.stages[0].gpuMemory: '0%' must be above 0%"),
        (("stages", 0, "gpuMemory"), "0.000Gi", "spec.stages[0].gpuMemory: '0.000Gi' must be above 0"),
        (("stages", 0, "gpuMemory"), 0, "spec.stages[0].gpuMemory: must be above 0"),
        (("stages", 0, "gpuMemory"), 0.5, "spec.stages[0].gpuMemory: must be text or a whole number, not a number 0.5"),
        (("stages", 0, "gpuMemory"), "1e9 %", "spec.stages[0].gpuMemory: '1e9 %' is not a percentage"),
        (("stages", 0, "gpus"), [-1], "spec.stages[0].gpus[0]: must be at least 0, not -1"),
        (("stages", 0, "gpus"), [0, 0], "spec.stages[0].gpus[1]: 0 is listed twice"),
        (("stages", 0, "gpus"), "0", "spec.stages[0].gpus: must be a list, not text '0'"),
        (("stages", 0, "gpus"), [], "spec.stages[0]: a stage without gpus has no gpuMemory"),
        (("stages", 4, "tensorParallelSize"), 2, "spec.stages[4]: tensorParallelSize must equal the number of gpus"),
        (("stages", 1, "name"), "thinker", "spec.stages[1]: thinker is listed twice"),
        (("stages", 1, "name"), ..., "spec.stages[1]: name is missing"),
        (("stages", 1, "env", 0, "name"), "CUDA_MPS_X", "spec.stages[1].env[0]: is set by the operator"),
        (("stages", 2, "process"), "Not A Name", "spec.stages[2].process: 'Not A Name' does not match"),
        (("model", "cache"), {}, "spec.model.cache: exactly one of persistentVolumeClaim, hostPath"),
        (("model", "id"), "", "spec.model.id: must not be empty"),
        (("model",), ..., "spec: model is missing"),
        (("gpus", "memory"), "80Gi", "spec.gpus: card and memory say the same thing twice"),
        (("gpus", "sharing", "strategy"), "mps", "spec.gpus.sharing.strategy: must be one of Auto, MPS"),
        (("gpus", "maxShare"), "0%", "spec.gpus.maxShare: '0%' must be above 0%"),
        (("stages", 0, "kvCache"), "0", "spec.stages[0].kvCache: '0' must be above 0"),
        (("gpus", "maxShare"), "94", "spec.gpus.maxShare: '94' is not a percentage"),
        (("replicas",), True, "spec.replicas: must be a whole number, not true or false True"),
        (("replicas",), 65, "spec.replicas: must be at most 64, not 65"),
        (("stages",), {"a": 1}, "spec.stages: must be a list, not a mapping"),
    ],
)
def test_what_is_wrong_has_a_path_and_a_way_out(path: Path, value: Any, says: str) -> None:
    found = faults(changed(path, value))
    assert len(found) == 1
    assert says in f"{show(found[0].path)}: {found[0].message}"


def test_null_is_as_if_it_were_not_written() -> None:
    spec = changed(("gpus", "selector"), None)
    assert faults(spec) == ()
    assert view(spec).gpus.selector is None  # type: ignore[union-attr]


LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    ["78%", "62Gi", "0%", "4GB", "101%", "MPS", "None", "x", "", "a b", "1h", 0, 1, 2, -1, 64, 10**6, 0.5, True, None,
     [], [0], [0, 1], [0, 0], {}, {"a": 1}, {"emptyDir": {}}, ...]
)  # fmt: skip


def paths(value: Any, at: Path = ()) -> list[Path]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [path for key, member in inner for path in paths(member, (*at, key))]


@given(st.sampled_from(paths(FULL)), LEAVES)
@settings(max_examples=600, deadline=None)
def test_what_it_takes_the_models_take_and_read_the_same(path: Path, value: Any) -> None:
    spec = changed(path, value)
    light = faults(spec)
    try:
        model = OmniModelSpec.model_validate(spec)
    except ValidationError:
        assert light
        return
    if light:  # CEL, list types and exact types are the API server's: pydantic turns "2" into 2 and has no CEL.
        return
    with_models, without = resolve(model), resolve(view(spec))
    assert without.problems == with_models.problems
    assert without.layout == with_models.layout
    if with_models.layout is not None and without.layout is not None:
        assert check(without.layout) == check(with_models.layout)


@given(st.sampled_from(paths(FULL)), LEAVES)
@settings(max_examples=300, deadline=None)
def test_what_only_the_light_reader_refuses_is_the_api_servers_business(path: Path, value: Any) -> None:
    spec = changed(path, value)
    try:
        OmniModelSpec.model_validate(spec)
    except ValidationError:
        return
    messages = {rule["message"] for rule in _all_rules(schema())}
    for fault in faults(spec):
        coerced = fault.message.startswith("must be ") and not isinstance(value, dict)
        assert fault.message in messages or "listed twice" in fault.message or coerced


def _all_rules(node: Any) -> list[dict[str, str]]:
    if isinstance(node, dict):
        return [*node.get("x-kubernetes-validations", ()), *(r for value in node.values() for r in _all_rules(value))]
    return [r for item in node for r in _all_rules(item)] if isinstance(node, list) else []
