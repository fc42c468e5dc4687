"""What is exposed keeps Prometheus' rules, and says what happened."""

from __future__ import annotations

import re

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from omni_operator.api.v1alpha1 import OmniModelStatus
from omni_operator.planning.observed import ObservedPod
from omni_operator.runtime.metrics import Metrics

STATUS = OmniModelStatus.model_validate(
    {
        "observedGeneration": 1,
        "conditions": [
            {
                "type": kind,
                "status": status,
                "reason": "Ready",
                "message": "",
                "lastTransitionTime": "2026-11-29T12:00:00Z",
                "observedGeneration": 1,
            }
            for kind, status in (("Accepted", "True"), ("Ready", "False"))
        ],
        "gpus": [{"slot": 0, "replica": 0, "uuid": "GPU-1", "givenAway": "94.5%", "stages": ["thinker"]}],
        "stages": [{"name": "thinker", "replica": 0, "pod": "m-0-thinker", "state": "Ready", "restarts": 3}],
        "groupRestarts": [{"replica": 0, "restarts": 2, "lastRestart": "2026-11-29T12:00:00Z", "reason": "GpuFault"}],
    }
)
UNITS = ("seconds", "bytes", "ratio")
NO_UNITS = re.compile(r"_(ms|milliseconds|minutes|hours|percent|mib|gib|mb|gb|counter|gauge|histogram)(_|$)")


@pytest.fixture
def metrics() -> Metrics:
    found = Metrics()
    found.watch_queue(lambda: 2, lambda: 1.5)
    found.watch_calls(lambda: 7)
    found.statuses.keep("ns", "m", STATUS)
    found.statuses.started("ns", "m", [ObservedPod("m-0-thinker", "u", 0, "stage", "thinker", "h", 1)] * 4)
    found.reconcile_seconds.labels("ok").observe(0.05)
    found.writes.labels("apply").inc(3)
    return found


def families(metrics: Metrics) -> list[Metric]:
    return list(text_string_to_metric_families(generate_latest(metrics.registry).decode()))


def test_names_keep_prometheus_rules(metrics: Metrics) -> None:
    found = families(metrics)
    assert len({family.name for family in found}) == len(found)
    for family in found:
        assert re.fullmatch(r"omni_operator_[a-z][a-z0-9_]*", family.name)
        assert family.documentation.endswith("."), family.name
        assert not NO_UNITS.search(family.name), "base units, and no type in a name"
        assert not family.name.endswith("_created")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        else:
            assert not family.name.endswith("_total")
        for unit in UNITS:
            assert unit not in family.name.split("_")[:-1], "the unit comes last"
        for sample in family.samples:
            assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in sample.labels)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"omni_operator_{name}", labels)


def test_statuses_are_counted_and_a_deleted_one_leaves_nothing(metrics: Metrics) -> None:
    metrics.statuses.keep("ns", "other", STATUS)
    assert value(metrics, "omnimodels", condition="Accepted", status="True") == 2
    assert value(metrics, "omnimodels", condition="Ready", status="False") == 2
    model = {"namespace": "ns", "omnimodel": "m", "replica": "0"}
    assert value(metrics, "gpu_budget_ratio", **model, slot="0", gpu="GPU-1") == 0.945
    assert value(metrics, "stage_restarts_total", **model, stage="thinker") == 3
    assert value(metrics, "stage_starts_total", **model, process="thinker") == 4
    assert value(metrics, "group_restarts_total", **model) == 2
    for name in ("m", "other", "never-there"):
        metrics.statuses.keep("ns", name, None)
    text = generate_latest(metrics.registry).decode()
    assert "thinker" not in text
    assert value(metrics, "omnimodels", condition="Accepted", status="True") is None


def test_the_queue_is_read_when_asked_for(metrics: Metrics) -> None:
    assert (value(metrics, "queue_depth"), value(metrics, "queue_oldest_age_seconds")) == (2, 1.5)
    assert value(metrics, "api_calls_total") == 7
