"""What users add to pods: what decides about GPUs, start and restart stays the operator's, and is refused with the
reason and with what to use instead.

The rules read templates as written, so that each problem has the path of what was written. What they let pass cannot
change a label, a claim, a gate, a limit or a mount that the operator relies on; a test holds that for any template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import normpath

from omni_operator.api import names
from omni_operator.api.reasons import Reason
from omni_operator.planning.layout import Layout, Problem, Problems
from omni_operator.planning.observed import FRONT
from omni_operator.planning.rules.pod_fields import CONTAINER_FREE, CONTAINER_RESERVED, POD_FREE, POD_RESERVED, Reserved
from omni_operator.planning.templates import OURS, ContainerPart, PodTemplate
from omni_stage.contract import (
    ABORT_PORT,
    API_PORT,
    COMPLETION_PORT,
    CONFIG_PATH,
    HOLD_VARIABLE,
    MODEL_CACHE_PATH,
    POD_IP_VARIABLE,
    RELAY_PORT_BASE,
    STAGE_PORT_BASE,
    SUPERVISOR_PORT,
)

OWN_PREFIX = f"{names.GROUP}/"
OWN_LABELS = (names.MANAGED_BY_LABEL, "app.kubernetes.io/name", "app.kubernetes.io/instance")
OWN_VOLUMES = (names.CONFIG_VOLUME, names.SCRATCH_VOLUME, names.MODELS_VOLUME, names.SHM_VOLUME)
OWN_VARIABLES = (POD_IP_VARIABLE, HOLD_VARIABLE)
OWN_MOUNTS = {
    CONFIG_PATH.rpartition("/")[0]: "the file that tells the container what it is",
    "/dev/shm": "the shared memory that the processes of a GPU have in common",
    "/tmp/nvidia-mps": "the sockets of the MPS control daemon, which the GPU driver mounts",
    "/opt/omni": "the stage image's program",
}
"""Nothing may be mounted at, in or over these."""
OWN_MOUNT_POINTS = {MODEL_CACHE_PATH: "the model cache", "/tmp": "the container's scratch space"}
"""Nothing may be mounted at or over these; below them there is room."""
OWN_PORT_NAMES = ("supervisor", "api")
OWN_PORTS = frozenset({
    SUPERVISOR_PORT, API_PORT, COMPLETION_PORT, ABORT_PORT,
    *range(STAGE_PORT_BASE, STAGE_PORT_BASE + 128), *range(RELAY_PORT_BASE, RELAY_PORT_BASE + 64),
})  # fmt: skip
"""A pipeline has at most 64 stages, each with two ports and a relay."""
LEAST_GRACE_SECONDS = 25
"""A stage drains for 20 s."""
_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def fields_left_to_operator(layout: Layout) -> Problems:
    """Fields of a pod, and of the operator's own containers, that are not the user's."""
    for template in layout.templates:
        for name in template.spec:
            if name not in POD_FREE:
                yield _reserved(f"{template.path}.spec.{name}", name, POD_RESERVED.get(name))
        for part in template.containers():
            if part.ours:
                yield from _fields_of_ours(part)


def _fields_of_ours(part: ContainerPart) -> Problems:
    for name in part.fields:
        if name not in CONTAINER_FREE:
            yield _reserved(f"{part.path}.{name}", f"{name} of container {part.name}", CONTAINER_RESERVED.get(name))
    if "stopSignal" in part.fields.get("lifecycle", {}):
        yield _reserved(f"{part.path}.lifecycle.stopSignal", "stopSignal", Reserved("is SIGTERM, on which it drains"))


def values_that_keep_stages_serving(layout: Layout) -> Problems:
    """Fields that may be set, but not to every value."""
    for template in layout.templates:
        path = f"{template.path}.spec"
        if template.spec.get("dnsPolicy") == "Default":
            why = Reserved("Default does not know the cluster's names, by which stages find each other")
            yield _reserved(f"{path}.dnsPolicy", "dnsPolicy", why)
        grace = template.spec.get("terminationGracePeriodSeconds", LEAST_GRACE_SECONDS)
        if grace < LEAST_GRACE_SECONDS:
            why = Reserved(
                f"of {grace} s cuts off what a stage still answers", f"Give it {LEAST_GRACE_SECONDS} or more."
            )
            yield _reserved(f"{path}.terminationGracePeriodSeconds", "terminationGracePeriodSeconds", why)
        if template.spec.get("readinessGates") and template.component != FRONT:
            why = Reserved("of a stage would keep the next one waiting", "Set it in spec.frontend.podTemplate.")
            yield _reserved(f"{path}.readinessGates", "readinessGates", why)


def metadata_left_to_operator(layout: Layout) -> Problems:
    """Labels by which the operator, Services and policies find pods, and annotations by which it compares them."""
    for template in layout.templates:
        for kind, found in (("label", template.labels), ("annotation", template.annotations)):
            for key, value in found.items():
                yield from _metadata_problems(f"{template.path}.metadata.{kind}s[{key}]", kind, key, value)


def _metadata_problems(path: str, kind: str, key: str, value: str) -> Problems:
    if key.startswith(OWN_PREFIX) or (kind == "label" and key in OWN_LABELS):
        yield Problem(
            Reason.FIELD_RESERVED,
            f"The {kind} {key} is the operator's: by it, pods are found and compared.",
            path,
            remedy="Remove it, or give it another name.",
        )
    elif not _KEY.fullmatch(key) or (kind == "label" and not _VALUE.fullmatch(value)):
        what = f"{key!r}" if kind == "annotation" else f"{key!r}: {value!r}"
        yield Problem(
            Reason.INVALID_SPEC,
            f"{what} is no {kind} that Kubernetes takes.",
            path,
            remedy="Use up to 63 letters, digits, -, _ and .; a key may have a domain and / before that.",
        )


def variables_left_to_driver(layout: Layout) -> Problems:
    """Variables by which a container would open a GPU that it was not given, or lift the limit of its share."""
    for part in _parts(layout):
        for i, variable in enumerate(part.fields.get("env", ())):
            if names.driver_sets(variable["name"]) or (part.ours and variable["name"] in OWN_VARIABLES):
                yield Problem(
                    Reason.VARIABLE_RESERVED,
                    f"{variable['name']} is set by the operator and the GPU driver.",
                    f"{part.path}.env[{i}].name",
                    remedy="Remove it, and use gpus, gpuMemory or computePercentage of the stage.",
                )
        for i, source in enumerate(part.fields.get("envFrom", ())):
            if _may_set_reserved(source.get("prefix", ""), part):
                yield Problem(
                    Reason.VARIABLE_RESERVED,
                    f"Which variables envFrom sets in container {part.name}, nobody knows before it starts; some could "
                    "be the GPU driver's.",
                    f"{part.path}.envFrom[{i}]",
                    remedy="Name each in env, with valueFrom, or give envFrom a prefix such as APP_.",
                )


def _may_set_reserved(prefix: str, part: ContainerPart) -> bool:
    """Whether some key behind a prefix makes a reserved name. Without prefix that would be any ConfigMap and Secret: so
    only in containers that see a GPU."""
    if not prefix:
        return part.ours
    reserved = (names.DRIVER_VARIABLE_PREFIX, *names.DRIVER_VARIABLES, *(OWN_VARIABLES if part.ours else ()))
    return names.driver_sets(prefix) or any(name.startswith(prefix) for name in reserved)


def mounts_left_to_operator(layout: Layout) -> Problems:
    """Mounts of the operator's own containers that would hide what it or the driver put there."""
    for part in _parts(layout):
        for i, mount in enumerate(part.fields.get("volumeMounts", ()) if part.ours else ()):
            hidden = _hidden_by(mount["mountPath"])
            if hidden:
                yield Problem(
                    Reason.MOUNT_RESERVED,
                    f"A volume at {mount['mountPath']} of container {part.name} would hide {hidden}.",
                    f"{part.path}.volumeMounts[{i}].mountPath",
                    remedy="Mount it elsewhere, such as at /data.",
                )


def _hidden_by(path: str) -> str:
    where = "/" + normpath(path).strip("/")
    for own, what in {**OWN_MOUNTS, **OWN_MOUNT_POINTS}.items():
        within = own in OWN_MOUNTS and where.startswith(f"{own}/")
        if where in ("/", own) or own.startswith(f"{where}/") or within:
            return f"{own}, {what}"
    return ""


def names_apart(layout: Layout) -> Problems:
    """Volumes, containers and ports that have the operator's names, and are something else."""
    for template in layout.templates:
        for i, volume in enumerate(template.spec.get("volumes", ())):
            if volume["name"] in OWN_VOLUMES:
                yield _collides(f"volume {volume['name']}", f"{template.path}.spec.volumes[{i}].name")
        for part in template.containers():
            yield from _container_apart(template, part)
            for i, port in enumerate(part.fields.get("ports", ())):
                if port["containerPort"] in OWN_PORTS or port.get("name") in OWN_PORT_NAMES:
                    named = f" ({port['name']})" if "name" in port else ""
                    yield _collides(
                        f"port {port['containerPort']}{named}", f"{part.path}.ports[{i}]", "Use another port."
                    )


def _container_apart(template: PodTemplate, part: ContainerPart) -> Problems:
    if part.init and part.name in OURS:
        yield _collides(f"container {part.name}", f"{part.path}.name")
    elif part.ours and template.component and part.name != template.component:
        yield Problem(
            Reason.NAMES_COLLIDE,
            f"The pods of {template.path} have no container {part.name}; the operator's is {template.component} there.",
            f"{part.path}.name",
            remedy=f"Write {template.component}, or give your own container another name.",
        )


def _parts(layout: Layout) -> Iterator[ContainerPart]:
    for template in layout.templates:
        yield from template.containers()


def _reserved(path: str, what: str, reserved: Reserved | None) -> Problem:
    known = reserved or Reserved("is not known to this operator, which so cannot tell what it does to the GPUs")
    return Problem(Reason.FIELD_RESERVED, f"{what} {known.why}.", path, remedy=known.instead)


def _collides(what: str, path: str, remedy: str = "Give it another name.") -> Problem:
    return Problem(Reason.NAMES_COLLIDE, f"{what[0].upper()}{what[1:]} is the operator's own.", path, remedy=remedy)
