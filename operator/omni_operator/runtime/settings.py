"""What the operator is installed with, from environment variables that the chart sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


class SettingsError(ValueError):
    """A setting is missing or cannot be read; the message names the variable."""


@dataclass(frozen=True)
class OperatorSettings:
    """Each field's variable is OMNI_ and its name in capitals."""

    stage_image: str
    image_pull_policy: str = "IfNotPresent"
    namespace: str = ""
    """Watch this namespace only; empty: all."""
    workers: int = 4
    """OmniModels reconciled side by side."""
    resync_seconds: float = 300.0
    """Every OmniModel is looked at again this often, even if nothing happened."""
    health_port: int = 8080
    """HTTP of /healthz, /readyz and /metrics."""
    log_level: str = "INFO"
    lease_namespace: str = ""
    """Namespace of the Lease that the operator's replicas compete for; empty: a single replica without a Lease."""
    pod_name: str = "omni-operator"
    """Identity in the Lease."""


def read_settings(environment: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Raises SettingsError."""
    values: dict[str, str | int | float] = {}
    for name, kind in OperatorSettings.__annotations__.items():
        variable = f"OMNI_{name.upper()}"
        text = environment.get(variable)
        if text is None:
            continue
        try:
            values[name] = {"int": int, "float": float}.get(str(kind), str)(text)
        except ValueError as error:
            raise SettingsError(f"{variable}: {text!r} is not a number") from error
    if not values.get("stage_image"):
        raise SettingsError("OMNI_STAGE_IMAGE is not set: the image of the stage container")
    return OperatorSettings(**values)  # type: ignore[arg-type]
