"""The command line and the controller say the same of every declaration, word by word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_operator.cli.documents import Document, Place
from omni_operator.cli.judge import Options, judge
from omni_operator.rendering import Settings
from omni_operator.rendering.plan import Plan, plan_for
from tests.conftest import ROOT, example

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))
STAGES = ("image_encoder", "audio_encoder", "thinker", "talker_ar", "code2wav", "nobody")
STAGE = st.fixed_dictionaries(
    {"name": st.sampled_from(STAGES)},
    optional={
        "gpus": st.lists(st.integers(0, 2), max_size=2, unique=True),
        "gpuMemory": st.sampled_from(["2%", "10%", "40%", "78%", "88%", "62Gi", "9Gi", "100%"]),
        "kvCache": st.sampled_from(["1Gi", "8Gi"]),
        "process": st.sampled_from(["p", "thinker"]),
        "computePercentage": st.just(50),
        "podTemplate": st.just({"spec": {"containers": [{"name": "front"}]}}),
        "resources": st.sampled_from([{"requests": {"cpu": 1}}, {"limits": {"nvidia.com/gpu": 1}}]),
        "engineArgs": st.sampled_from([{"quantization": "fp8"}, {"max_total_tokens": 1000}]),
    },
)
TEMPLATE = st.fixed_dictionaries({}, optional={
    "metadata": st.sampled_from([{"labels": {"team": "a"}}, {"labels": {"omnimodel.io/name": "a"}}, {}]),
    "spec": st.sampled_from([{}, {"hostIPC": True}, {"nodeName": "n"}, {"affinty": {}}, {"containers": [{}]},
                             {"containers": [{"name": "stage", "env": [{"name": "CUDA_MPS_X", "value": "1"}]}]},
                             {"securityContext": {"runAsUser": 7}}, {"hostPID": None}]),
})  # fmt: skip
SPECS = st.fixed_dictionaries(
    {"stages": st.lists(STAGE, max_size=5, unique_by=lambda stage: stage["name"])},
    optional={
        "gpus": st.sampled_from([{}, {"card": "h100-80gb"}, {"card": "gb10"}, {"card": "h200", "maxShare": "94%"},
                                 {"memory": "80Gi"}, {"card": "h20", "sharing": {"strategy": "None"}}]),
        "development": st.just({"hold": "loading"}),
        "podTemplate": TEMPLATE,
        "frontend": st.fixed_dictionaries({"podTemplate": TEMPLATE}),
    },
)  # fmt: skip


def both(manifest: dict[str, Any]) -> tuple[list[str], list[str]]:
    judged = judge(Document(manifest, {(): Place("f")}), Options())
    planned = plan_for(manifest, Settings("image"))
    problems = planned.problems if isinstance(planned, Plan) else planned
    return [f"{p.reason} {p.severity} {p}" for p in judged.problems], [f"{p.reason} {p.severity} {p}" for p in problems]


@pytest.mark.parametrize("name", EXAMPLES)
def test_of_every_example(name: str) -> None:
    ours, theirs = both(example(name))
    assert ours == theirs


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SPECS, st.sampled_from(["speech", "speech-colocated", "nothing"]))
def test_of_any_declaration_that_the_api_server_takes(spec: dict[str, Any], variant: str) -> None:
    for stage in spec["stages"]:
        if not stage.get("gpus", [0]):
            stage.pop("gpuMemory", None)
    model = {"id": "Qwen/Qwen3-Omni-30B-A3B-Instruct", "variant": variant, "cache": {"emptyDir": {}}}
    manifest = example("qwen3-omni-h100-colocated")
    manifest["spec"] = {"model": model, **spec}
    ours, theirs = both(manifest)
    assert ours == theirs
