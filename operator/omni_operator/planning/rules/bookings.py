"""What users ask for beside the slots of their stages: claims, GPUs, CPU and memory of pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omni_operator.api import names
from omni_operator.api.quantities import parse_quantity
from omni_operator.api.reasons import Reason
from omni_operator.planning.layout import Layout, Problem, Problems
from omni_operator.planning.rules.wording import closest
from omni_operator.planning.templates import PodTemplate

_GPU = re.compile(
    r"^(?:[a-z0-9-]+\.)*nvidia\.com/(?!.*(?:rdma|hostdev))|gpu|vcuda|^habana\.ai/|^deviceclass\.resource\."
)
"""Resources by which a device plugin, or a DeviceClass, gives out GPUs. NVIDIA's network devices are none."""
_PLAIN = ("cpu", "memory", "ephemeral-storage")
_KINDS = ("requests", "limits")


def claims_shared(layout: Layout) -> Problems:
    """A template makes a claim for each pod, so that no two pods share its GPU; and the GPUs' claim is for stages."""
    for template in layout.templates:
        for i, claim in enumerate(template.spec.get("resourceClaims", ())):
            path = f"{template.path}.spec.resourceClaims[{i}]"
            if "resourceClaimTemplateName" in claim:
                yield Problem(
                    Reason.CLAIM_NOT_SHARED,
                    f"A ResourceClaimTemplate gives each pod a claim of its own, so what {claim['name']} stands for "
                    "would not be shared.",
                    f"{path}.resourceClaimTemplateName",
                    remedy="For GPUs use gpus of the stages: the operator makes one claim for all that share them. For "
                    "another device, name a ResourceClaim with resourceClaimName.",
                )
            elif claim["name"] == names.POD_CLAIM:
                yield _of_stages(f"{path}.name")
        for path, resources in _resources(template):
            for i, claim in enumerate(resources.get("claims", ())):
                if claim["name"] == names.POD_CLAIM:
                    yield _of_stages(f"{path}.claims[{i}]")


def _of_stages(path: str) -> Problem:
    return Problem(
        Reason.CLAIM_NOT_SHARED,
        f"The claim {names.POD_CLAIM} is the operator's: it says which stage has which GPU.",
        path,
        remedy="Use gpus of the stage; give a claim for another device another name.",
    )


def gpus_booked_once(layout: Layout) -> Problems:
    """GPUs that come in another way than by `gpus` are counted twice, or by nobody."""
    for template in layout.templates:
        for path, resources in _resources(template):
            for kind in _KINDS:
                for name in resources.get(kind, {}):
                    if not _GPU.search(name) and name != layout.device_plugin.resource:
                        continue
                    yield Problem(
                        Reason.GPU_DOUBLE_BOOKED,
                        f"{name} would give the pod a GPU beside that of its slots.",
                        f"{path}.{kind}[{name}]",
                        remedy="Remove it, and list slots in gpus of the stage: the operator asks for their GPUs.",
                    )
        for part in template.containers():
            if part.fields.get("securityContext", {}).get("privileged"):
                yield Problem(
                    Reason.GPU_DOUBLE_BOOKED,
                    f"Container {part.name} would be privileged, and so see every GPU of its node.",
                    f"{part.path}.securityContext.privileged",
                    remedy="Add the capabilities that it needs instead.",
                )


def resources_make_sense(layout: Layout) -> Problems:
    """Resources that Kubernetes does not know, and requests above their limits."""
    for template in layout.templates:
        for path, resources in _resources(template):
            for kind in _KINDS:
                for name in resources.get(kind, {}):
                    if "/" not in name and name not in _PLAIN and not name.startswith("hugepages-"):
                        yield _unknown(f"{path}.{kind}[{name}]", name)
            limits = resources.get("limits", {})
            for name, wanted in resources.get("requests", {}).items():
                if name in limits and parse_quantity(wanted) > parse_quantity(limits[name]):
                    yield Problem(
                        Reason.INVALID_SPEC,
                        f"A request of {wanted} {name} is above its limit of {limits[name]}.",
                        f"{path}.requests[{name}]",
                        remedy=f"Raise the limit to {wanted}, or lower the request.",
                    )


def _unknown(path: str, name: str) -> Problem:
    meant = closest(name, _PLAIN)
    remedy = f"Did you mean {meant}?" if meant else "Known are cpu, memory, ephemeral-storage and hugepages-…"
    return Problem(Reason.INVALID_SPEC, f"Kubernetes has no resource {name!r}.", path, remedy=remedy)


def _resources(template: PodTemplate) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Resources of the pod and of each container, with their paths."""
    if "resources" in template.spec:
        yield f"{template.path}.spec.resources", template.spec["resources"]
    for part in template.containers():
        if "resources" in part.fields:
            yield f"{part.path}.resources", part.fields["resources"]
