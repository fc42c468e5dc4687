"""What the operator says of itself, in Prometheus' words.

What is counted per OmniModel is read off the last statuses when it is asked for, so that a pass costs the same however
many OmniModels there are, and a deleted one leaves no series behind.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from omni_operator.api.v1alpha1 import OmniModelStatus
from omni_operator.planning.observed import ObservedPod

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, that nobody reads

PREFIX = "omni_operator"


@dataclass(frozen=True, slots=True)
class Sample:
    """What metrics need of one OmniModel's status, and no more: there may be thousands."""

    conditions: tuple[tuple[str, str], ...]
    """(type, status)"""
    budgets: tuple[tuple[str, str, str, float], ...]
    """(replica, slot, GPU's uuid, share of the planned card that is given away)"""
    restarts: tuple[tuple[str, str, int], ...]
    """(replica, stage, container restarts)"""
    group_restarts: tuple[tuple[str, int], ...]
    """(replica, restarts of all its stage pods together)"""

    @staticmethod
    def of(status: OmniModelStatus) -> Sample:
        return Sample(
            tuple((str(c.type), str(c.status)) for c in status.conditions or []),
            tuple((str(g.replica), str(g.slot), g.uuid or "", _ratio(g.given_away)) for g in status.gpus or []),
            tuple((str(s.replica), s.name, s.restarts) for s in status.stages or []),
            tuple((str(g.replica), g.restarts) for g in status.group_restarts or []),
        )


def _ratio(percent: str) -> float:
    """`94%` → 0.94; 0 for what is no share."""
    with suppress(ValueError):
        return float(Fraction(percent.removesuffix("%").strip()) / 100)
    return 0.0


class Statuses(Collector):
    """The last status of each OmniModel by (namespace, name)."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], Sample] = {}
        self._starts: dict[tuple[str, str], Tally[tuple[str, str]]] = {}

    def keep(self, namespace: str, name: str, status: OmniModelStatus | None) -> None:
        """None: there is no such OmniModel any more."""
        if status is None:
            self._samples.pop((namespace, name), None)
            self._starts.pop((namespace, name), None)
        else:
            self._samples[namespace, name] = Sample.of(status)

    def started(self, namespace: str, name: str, pods: Iterable[ObservedPod]) -> None:
        """The turn of these pods came."""
        self._starts.setdefault((namespace, name), Tally()).update((str(pod.replica), pod.process) for pod in pods)

    def collect(self) -> Iterator[Metric]:
        """Called when metrics are asked for."""
        models = GaugeMetricFamily(
            f"{PREFIX}_omnimodels", "OmniModels by condition and status.", labels=["condition", "status"]
        )
        budget = GaugeMetricFamily(
            f"{PREFIX}_gpu_budget_ratio",
            "Share of a GPU's memory that the stages of a slot were given.",
            labels=["namespace", "omnimodel", "replica", "slot", "gpu"],
        )
        restarts = CounterMetricFamily(
            f"{PREFIX}_stage_restarts",
            "Restarts of the container that runs a stage.",
            labels=["namespace", "omnimodel", "replica", "stage"],
        )
        groups = CounterMetricFamily(
            f"{PREFIX}_group_restarts",
            "Restarts of all stage pods of a replica together, counted anew after an hour without one.",
            labels=["namespace", "omnimodel", "replica"],
        )
        starts = CounterMetricFamily(
            f"{PREFIX}_stage_starts",
            "Pods of a process of the pipeline whose turn to start on their GPUs came.",
            labels=["namespace", "omnimodel", "replica", "process"],
        )
        tally: Tally[tuple[str, str]] = Tally()
        for key, sample in list(self._samples.items()):
            tally.update(sample.conditions)
            for replica, slot, gpu, ratio in sample.budgets:
                budget.add_metric([*key, replica, slot, gpu], ratio)
            for replica, stage, count in sample.restarts:
                restarts.add_metric([*key, replica, stage], count)
            for replica, count in sample.group_restarts:
                groups.add_metric([*key, replica], count)
            for (replica, process), count in self._starts.get(key, Tally()).items():
                starts.add_metric([*key, replica, process], count)
        for labels, number in tally.items():
            models.add_metric(labels, number)
        yield from (models, budget, restarts, groups, starts)


class _Calls(Collector):
    def __init__(self, calls: Callable[[], int]) -> None:
        self._calls = calls

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(f"{PREFIX}_api_calls", "Calls to the Kubernetes API.", value=self._calls())


class Metrics:
    """One registry, so that tests can have their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.statuses = Statuses()
        self.registry.register(self.statuses)
        self.reconcile_seconds = Histogram(
            f"{PREFIX}_reconcile_duration_seconds",
            "Time of one pass over an OmniModel.",
            ["result"],
            registry=self.registry,
            buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
        )
        self.pass_writes = Histogram(
            f"{PREFIX}_reconcile_writes",
            "Objects written by one pass; 0 where nothing had changed.",
            registry=self.registry,
            buckets=(0, 1, 2, 5, 10, 20, 50),
        )
        self.retries = Counter(
            f"{PREFIX}_reconcile_retries", "Passes that failed and come back.", registry=self.registry
        )
        self.writes = Counter(f"{PREFIX}_writes", "Objects written by passes.", ["action"], registry=self.registry)

    def watch_calls(self, calls: Callable[[], int]) -> None:
        """Calls made so far, read when asked for: passes run side by side, so none can count its own."""
        self.registry.register(_Calls(calls))

    def watch_queue(self, depth: Callable[[], float], age: Callable[[], float]) -> None:
        """Read depth and age when they are asked for."""
        waiting = Gauge(f"{PREFIX}_queue_depth", "OmniModels that wait for a pass.", registry=self.registry)
        waiting.set_function(depth)
        oldest = Gauge(
            f"{PREFIX}_queue_oldest_age_seconds",
            "For how long the longest waiting OmniModel has been due.",
            registry=self.registry,
        )
        oldest.set_function(age)
