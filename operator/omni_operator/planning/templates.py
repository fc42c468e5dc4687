"""What a user adds to pods: the pod templates of a spec, and the short fields (env, resources) that say the same.

A template is read once, here: what comes out has the types of a pod, so that rules and rendering need not ask again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from omni_operator.api.pod_schema import partial_pod_spec, pod_types
from omni_operator.api.reasons import Reason
from omni_operator.api.structural import Checker, Fault, show
from omni_operator.planning.layout import Problem
from omni_operator.planning.observed import FRONT, STAGE

if TYPE_CHECKING:
    from omni_operator.api.v1alpha1 import OmniModelSpec

OURS = (STAGE, FRONT)
"""Names of the operator's own containers, each in pods of the component of that name."""


@dataclass(frozen=True)
class ContainerPart:
    """What a template says of one container."""

    path: str
    fields: Mapping[str, Any]
    init: bool

    @property
    def name(self) -> str:
        """Its name, by which it is merged."""
        return str(self.fields["name"])

    @property
    def ours(self) -> bool:
        """Whether it is merged into the operator's own."""
        return self.name in OURS and not self.init


@dataclass(frozen=True)
class PodTemplate:
    """What is added to some pods."""

    path: str
    component: str = ""
    """`stage` or `front`; empty: to both."""
    stage: str = ""
    """To the pod of this stage alone."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Part of a pod's spec, well typed and without nulls."""
    short: bool = False
    """Whether it was written as short fields of the operator's container: `path` is that container's then."""
    complete: bool = True
    """Whether no field of it was left out."""

    def containers(self) -> Iterator[ContainerPart]:
        """Init containers last."""
        for name in ("containers", "initContainers"):
            for i, fields in enumerate(self.spec.get(name, ())):
                path = self.path if self.short else f"{self.path}.spec.{name}[{i}]"
                yield ContainerPart(path, fields, name == "initContainers")


def layers(templates: Iterable[PodTemplate], component: str, stages: Iterable[str] = ()) -> Iterator[PodTemplate]:
    """The templates of one pod, in the order in which they are merged: what all pods have, then its own."""
    names = set(stages)
    for template in templates:
        if template.component in ("", component) and (not template.stage or template.stage in names):
            yield template


def read_templates(spec: OmniModelSpec) -> tuple[tuple[PodTemplate, ...], list[Problem]]:
    """All templates of a spec, and what is no part of a pod. Fields with faults are left out, so that the rest can be
    judged too."""
    found: list[PodTemplate] = []
    problems: list[Problem] = []
    for template in _written(spec):
        faults = [] if template.short else list(Checker(pod_types()).faults(template.spec, partial_pod_spec()))
        problems += [_problem(template, fault) for fault in faults]
        wrong = {fault.path[0] for fault in faults}
        sound = {name: value for name, value in template.spec.items() if name not in wrong}
        found.append(replace(template, spec=sound, complete=False) if faults else template)
    return tuple(found), problems


def _problem(template: PodTemplate, fault: Fault) -> Problem:
    path = show(fault.path, f"{template.path}.spec")
    end = "" if fault.message.endswith("?") else "."
    remedy = "Remove it, or correct its name." if fault.message.startswith("unknown field") else ""
    return Problem(Reason.INVALID_SPEC, f"{path}: {fault.message}{end}", path, remedy=remedy)


def _written(spec: OmniModelSpec) -> Iterator[PodTemplate]:
    """What is said of one stage comes after what is said of all, and so wins."""
    yield from _template("spec", spec.pod_template)
    for i, stage in enumerate(spec.stages or ()):
        path = f"spec.stages[{i}]"
        yield from _short(path, STAGE, stage.name, stage.env, stage.resources)
        yield from _template(path, stage.pod_template, STAGE, stage.name)
    front = spec.frontend
    if front is not None:
        yield from _short("spec.frontend", FRONT, "", None, front.resources)
        yield from _template("spec.frontend", front.pod_template, FRONT)


def _short(path: str, component: str, stage: str, env: Any, resources: Any) -> Iterator[PodTemplate]:
    fields: dict[str, Any] = {}
    if env:
        fields["env"] = [{"name": variable.name, "value": variable.value} for variable in env]
    if resources is not None:
        parts = {"requests": resources.requests, "limits": resources.limits}
        fields["resources"] = {name: dict(part) for name, part in parts.items() if part is not None}
    if fields:
        yield PodTemplate(path, component, stage, spec={"containers": [{"name": component, **fields}]}, short=True)


def _template(path: str, template: Any, component: str = "", stage: str = "") -> Iterator[PodTemplate]:
    if template is None:
        return
    meta = template.metadata
    yield PodTemplate(
        f"{path}.podTemplate",
        component,
        stage,
        dict((meta and meta.labels) or {}),
        dict((meta and meta.annotations) or {}),
        _without_nulls(template.spec or {}),
    )


def _without_nulls(value: Any) -> Any:
    """As the API server drops them from a pod. In a list they stay, and are a fault."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
