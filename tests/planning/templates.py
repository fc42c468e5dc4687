"""OmniModels with pod templates, for tests: where a template can stand, and what there is to say of it."""

from __future__ import annotations

from typing import Any

from omni_operator.planning.layout import Problem
from omni_operator.rendering import Settings
from omni_operator.rendering.plan import Plan, plan_for
from tests.conftest import example

COMMON, THINKER, FRONT = "spec.podTemplate", "spec.stages[0].podTemplate", "spec.frontend.podTemplate"


def model(spec: dict[str, Any] | None = None, at: str = COMMON, **metadata: Any) -> dict[str, Any]:
    """The tiny model with one pod template: common, of its thinker, or of the front."""
    manifest = example("tiny-omni")
    template: dict[str, Any] = {"spec": spec or {}}
    if metadata:
        template["metadata"] = metadata
    return with_template(manifest, at, template)


def with_template(manifest: dict[str, Any], at: str, template: Any) -> dict[str, Any]:
    """The manifest with a template at one of the three places."""
    spec = manifest["spec"]
    home = {COMMON: spec, THINKER: spec["stages"][0], FRONT: spec.setdefault("frontend", {})}[at]
    home["podTemplate"] = template
    return manifest


def judged(manifest: dict[str, Any]) -> tuple[Problem, ...]:
    """What the operator says of it."""
    plan = plan_for(manifest, Settings("stage:1"))
    return plan.problems if isinstance(plan, Plan) else plan


def container(name: str = "stage", **fields: Any) -> dict[str, Any]:
    """A pod's spec with one container."""
    return {"containers": [{"name": name, **fields}]}
