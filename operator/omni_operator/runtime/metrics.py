"""What the operator says of itself, in Prometheus' words."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """One registry, so that tests can have their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "omni_operator_reconcile_duration_seconds",
            "Time of one pass over an OmniModel.",
            ["result"],
            registry=self.registry,
            buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
        )
        self.retries = Counter(
            "omni_operator_reconcile_retries", "Passes that failed and come back.", registry=self.registry
        )
        self.api_calls = Counter(
            "omni_operator_api_calls", "Calls to the Kubernetes API by passes.", registry=self.registry
        )
        self.writes = Counter("omni_operator_writes", "Objects written by passes.", ["action"], registry=self.registry)
        self.models = Gauge(
            "omni_operator_omnimodels",
            "OmniModels by condition and status.",
            ["condition", "status"],
            registry=self.registry,
        )

    def watch_queue(self, depth: Callable[[], float], age: Callable[[], float]) -> None:
        """Read depth and age when they are asked for."""
        Gauge("omni_operator_queue_depth", "OmniModels that wait for a pass.", registry=self.registry).set_function(
            depth
        )
        Gauge(
            "omni_operator_queue_oldest_age_seconds",
            "For how long the longest waiting OmniModel has been due.",
            registry=self.registry,
        ).set_function(age)
