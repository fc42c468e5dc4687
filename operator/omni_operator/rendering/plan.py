"""An OmniModel's manifest → everything that should exist, or why it is refused. The one way that the controller and the
CLI both go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from omni_operator.api.reasons import Reason
from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.planning.budget import check_model
from omni_operator.planning.cluster import Surroundings
from omni_operator.planning.conditions import Subject
from omni_operator.planning.layout import Layout, Problem, refused
from omni_operator.planning.resolve import ANYWHERE, resolve
from omni_operator.planning.rollout import Rendered
from omni_operator.planning.rules.pod_fields import belongs
from omni_operator.planning.targets import ReplicaTarget, replica_indices, replica_target
from omni_operator.rendering import Owner, Settings, endpoint_port, render


@dataclass(frozen=True)
class Plan:
    """What an accepted declaration comes to."""

    layout: Layout
    problems: tuple[Problem, ...]
    targets: tuple[ReplicaTarget, ...]
    rendered: Rendered
    subject: Subject


def plan_for(
    model: Mapping[str, Any], settings: Settings, surroundings: Surroundings = ANYWHERE
) -> Plan | tuple[Problem, ...]:
    """The whole plan of an OmniModel as the API has it, or the problems for which it is refused. Pure."""
    try:
        spec = OmniModelSpec.model_validate(model["spec"])
    except ValidationError as error:
        return tuple(_invalid(error))
    meta = model["metadata"]
    resolution = resolve(spec, surroundings)
    problems = check_model(meta["name"], resolution)
    layout = resolution.layout
    if layout is None or refused(problems):
        return problems
    subject = subject_of(model, spec)
    indices = replica_indices(subject.replicas, surroundings.replicas)
    targets = tuple(replica_target(meta["name"], layout, index) for index in indices)
    owner = Owner(meta["name"], meta["namespace"], meta["uid"], meta["generation"])
    return Plan(layout, problems, targets, render(owner, spec, layout, settings, targets), subject)


def subject_of(model: Mapping[str, Any], spec: OmniModelSpec | None) -> Subject:
    """Who a status is for. `spec` is None where it cannot be read."""
    meta = model["metadata"]
    replicas = 1 if spec is None or spec.replicas is None else spec.replicas
    port = endpoint_port(spec) if spec is not None else 0
    return Subject(meta["name"], meta["namespace"], meta["generation"], replicas, port)


def _invalid(error: ValidationError) -> list[Problem]:
    """pydantic's findings as problems with the field's path."""
    problems: list[Problem] = []
    for found in error.errors(include_url=False):
        path = "spec" + "".join(_path_part(part) for part in found["loc"])
        unknown = found["type"] == "extra_forbidden"
        told = belongs(str(found["loc"][-1])) if unknown else ""
        words = f"unknown field; {told}".rstrip("; ") if unknown else _words(found)
        remedy = "Remove it, or correct its name." if unknown and not told else ""
        problems.append(Problem(Reason.INVALID_SPEC, f"{path}: {words}.", path, remedy=remedy))
    return problems


def _path_part(part: Any) -> str:
    return f"[{part}]" if isinstance(part, int) else f".{part}"


def _words(found: Any) -> str:
    text = str(found["msg"])
    return text.removeprefix("Value error, ").rstrip(".")
