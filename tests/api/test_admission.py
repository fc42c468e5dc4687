"""What the API server itself refuses, by schema and CEL, with the field and the remedy in its answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.conftest import Api
from tests.conftest import ROOT, example

pytestmark = pytest.mark.api


def model(**spec: Any) -> dict[str, Any]:
    manifest = example("qwen3-omni-h100-colocated")
    manifest["metadata"] = {"name": "m"}
    manifest["spec"] |= spec
    return manifest


def stage(**fields: Any) -> dict[str, Any]:
    return model(stages=[{"name": "thinker", **fields}])


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.yaml")))
def test_examples_are_well_formed(api: Api, name: str) -> None:
    manifest = example(name)
    del manifest["metadata"]["uid"], manifest["metadata"]["generation"], manifest["metadata"]["namespace"]
    done = api.apply(manifest)
    assert done.returncode == 0, done.stderr
    stored = api.get("omnimodels", manifest["metadata"]["name"])
    assert stored["spec"] == {"replicas": 1, **manifest["spec"]}, "nothing else is defaulted"


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown field", stage(gpuMem="5%"), "spec.stages[0].gpuMem", "unknown field"),
    ("share above a card", stage(gpuMemory="101%"), "spec.stages[0].gpuMemory", "at most 100%"),
    ("share of nothing", stage(gpuMemory="0%"), "spec.stages[0].gpuMemory", "above 0"),
    ("amount of nothing", stage(gpuMemory="0Gi"), "spec.stages[0].gpuMemory", "above 0"),
    ("amount of nothing, as a number", stage(gpuMemory=0), "spec.stages[0].gpuMemory", "above 0"),
    ("wrong unit", stage(gpuMemory="62GB"), "spec.stages[0].gpuMemory", "should match"),
    ("negative share", stage(gpuMemory="-5%"), "spec.stages[0].gpuMemory", "should match"),
    ("negative slot", stage(gpus=[-1]), "spec.stages[0].gpus[0]", "greater than or equal to 0"),
    ("a slot twice", stage(gpus=[0, 0]), "spec.stages[0].gpus[1]", "Duplicate value"),
    ("ranks and slots differ", stage(gpus=[0], tensorParallelSize=2), "spec.stages[0]", "must equal the number of"),
    ("memory without a GPU", stage(gpus=[], gpuMemory="5%"), "spec.stages[0]", "remove gpuMemory"),
    ("a driver's variable", stage(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]), "env[0]", "by the operator"),
    ("MPS variable", stage(env=[{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "x"}]), "env[0]", "set by the operator"),
    ("two of one name", model(stages=[{"name": "thinker"}] * 2), "spec.stages[1]", "Duplicate value"),
    ("card and memory", model(gpus={"card": "h100-80gb", "memory": "79Gi"}), "spec.gpus", "set one of them"),
    ("no model", {**model(), "spec": {}}, "spec.model", "Required"),
    ("unknown engine", model(engine="vllm"), "spec.engine", "Unsupported value"),
    ("two caches", model(model={"id": "a/b", "cache": {"emptyDir": {}, "hostPath": {"path": "/m"}}}),
     "spec.model.cache", "exactly one of"),
    ("no cache", model(model={"id": "a/b", "cache": {}}), "spec.model.cache", "exactly one of"),
    ("negative replicas", model(replicas=-1), "spec.replicas", "greater than or equal to 0"),
    ("no such amount", stage(resources={"requests": {"memory": "16GB"}}), "resources.requests.memory", "should match"),
    ("less than nothing", stage(resources={"limits": {"cpu": -1}}), "resources.limits.cpu", "than or equal to 0"),
    ("a template of nothing known", stage(podTemplate={"specs": {}}), "stages[0].podTemplate.specs", "unknown field"),
    ("a label that is a number", model(podTemplate={"metadata": {"labels": {"a": 1}}}), "labels.a", "must be of type"),
    ("no such duration", model(startupTimeout="soon"), "spec.startupTimeout", "should match"),
]  # fmt: skip


@pytest.mark.parametrize(("manifest", "field", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused_with_field_and_remedy(api: Api, manifest: dict[str, Any], field: str, words: str) -> None:
    done = api.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    assert done.returncode != 0
    assert field in done.stderr
    assert words in done.stderr
    assert api.get("omnimodels") == []


@pytest.mark.parametrize("share", ["33.333333333%", "100%", "0.5%", "1600Mi", "62Gi", "64000M", 1677721600])
def test_spellings_of_a_budget_that_are_kept_as_written(api: Api, share: str | int) -> None:
    done = api.apply(stage(gpuMemory=share))
    assert done.returncode == 0, done.stderr
    assert api.get("omnimodels", "m")["spec"]["stages"][0]["gpuMemory"] == share


def test_resources_take_numbers_and_quantities(api: Api) -> None:
    done = api.apply(stage(resources={"requests": {"cpu": 2, "memory": "16Gi"}}))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("declared", [{}, {"replicas": 1}], ids=["not said", "said"])
def test_scale_subresource_changes_replicas(api: Api, declared: dict[str, Any]) -> None:
    assert api.apply(model(**declared)).returncode == 0
    assert api.call("GET", f"{api.path('omnimodels', 'm')}/scale")["spec"] == {"replicas": 1}
    api.must("scale", "omnimodel/m", "--replicas=3")
    assert api.get("omnimodels", "m")["spec"]["replicas"] == 3
