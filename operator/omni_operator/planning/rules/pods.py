"""What users add to pods, judged pod by pod, after all templates of a pod are laid over each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omni_operator.api import names
from omni_operator.api.reasons import Reason
from omni_operator.planning.layout import Layout, Problem, Problems, Severity
from omni_operator.planning.observed import FRONT, STAGE
from omni_operator.planning.templates import OURS, ContainerPart, PodTemplate, layers

ROOT, USER = 0, 65532
"""User ids of the operator's pods: root's under an MPS daemon of one user, and the stage image's own."""
_MULTI_USER = "set spec.gpus.sharing.multiUser to true, if the GPU driver's daemon is multi-user"
_OFFERED = (names.CONFIG_VOLUME, names.SCRATCH_VOLUME, names.MODELS_VOLUME)


@dataclass(frozen=True)
class _Said:
    """A value, and where it was written; nowhere, if it is the operator's own."""

    value: Any
    path: str = ""


@dataclass(frozen=True)
class _Pod:
    """One pod of a replica, as far as templates decide about it."""

    name: str
    component: str
    slots: tuple[int, ...]
    root: bool
    """Whether the operator runs it as root."""
    templates: tuple[PodTemplate, ...]

    def parts(self) -> Iterator[ContainerPart]:
        """What is said of its containers, but for what a common template says of those of other pods."""
        for template in self.templates:
            for part in template.containers():
                if not part.ours or part.name == self.component:
                    yield part


def runs_as_root(layout: Layout, slots: tuple[int, ...]) -> bool:
    """Whether a pod is a client of an MPS daemon that serves root alone."""
    return layout.under_mps(slots) and not layout.multi_user


def _pods(layout: Layout) -> Iterator[_Pod]:
    if not layout.templates:
        return
    for process, stages in layout.processes().items():
        slots = tuple(dict.fromkeys(slot for stage in stages for slot in stage.slots))
        templates = tuple(layers(layout.templates, STAGE, [stage.name for stage in stages]))
        yield _Pod(process, STAGE, slots, runs_as_root(layout, slots), templates)
    yield _Pod("the front", FRONT, (), False, tuple(layers(layout.templates, FRONT)))


def additions_complete(layout: Layout) -> Problems:
    """A container without image is mostly the operator's own, misspelled; a mount needs its volume."""
    found: dict[str, Problem] = {}
    for pod in _pods(layout):
        if not all(template.complete for template in pod.templates):
            continue  # What seems to be missing may be what is written wrongly.
        volumes = {*_OFFERED, *(volume["name"] for t in pod.templates for volume in t.spec.get("volumes", ()))}
        with_image = {(part.name, part.init) for part in pod.parts() if part.ours or part.fields.get("image")}
        for part in pod.parts():
            if (part.name, part.init) not in with_image and not part.ours:
                found.setdefault(part.path, _without_image(pod, part))
            for i, mount in enumerate(part.fields.get("volumeMounts", ())):
                if mount["name"] not in volumes:
                    path = f"{part.path}.volumeMounts[{i}].name"
                    found.setdefault(path, _without_volume(pod, part, mount["name"], path))
    yield from found.values()


def _without_image(pod: _Pod, part: ContainerPart) -> Problem:
    ours = " or ".join(OURS) if not pod.component else pod.component
    return Problem(
        Reason.INVALID_SPEC,
        f"Container {part.name} has no image.",
        f"{part.path}.image",
        remedy=f"Give it one; if the operator's own was meant, that is {ours}.",
    )


def _without_volume(pod: _Pod, part: ContainerPart, volume: str, path: str) -> Problem:
    return Problem(
        Reason.INVALID_SPEC,
        f"Container {part.name} mounts volume {volume}, which the pod of {pod.name} does not have.",
        path,
        remedy="Add it to volumes of a podTemplate of that pod.",
    )


def users_can_start(layout: Layout) -> Problems:
    """kubelet starts no container that must not run as root, and would."""
    found: dict[str, Problem] = {}
    for pod in _pods(layout):
        for name, context in _contexts(pod).items():
            user, non_root = context["runAsUser"], context["runAsNonRoot"]
            if non_root.value and user.value == ROOT and (path := non_root.path or user.path):
                found.setdefault(path, _cannot_start(pod, name, path, bool(user.path)))
    yield from found.values()


def _cannot_start(pod: _Pod, container: str, path: str, said: bool) -> Problem:
    if pod.root and not said:
        why, remedy = ", since an MPS daemon of one user serves root alone", f"Remove runAsNonRoot, or {_MULTI_USER}."
    else:
        why, remedy = "", "Set another runAsUser, or runAsNonRoot to false."
    return Problem(
        Reason.INVALID_SPEC,
        f"Container {container} of the pod of {pod.name} must not run as root, but its user is 0{why}.",
        path,
        remedy=remedy,
    )


def one_user_per_daemon(layout: Layout) -> Problems:
    """An MPS daemon of one user refuses the pods of another one."""
    for slot, users in _users_by_slot(layout).items():
        if len({said.value for said in users.values()}) > 1:
            listed = ", ".join(f"{pod} {said.value}" for pod, said in users.items())
            path = next(said.path for said in users.values() if said.path)
            yield Problem(
                Reason.MPS_USERS_DIFFER,
                f"The pods of GPU {slot} run as different users ({listed}), and its MPS daemon serves one.",
                path,
                slot=slot,
                stages=tuple(stage.name for stage in layout.on_slot(slot)),
                remedy=f"Remove runAsUser, so that all run as 0, without capabilities; or {_MULTI_USER}.",
            )


def user_of_daemon(layout: Layout) -> Problems:
    """NVIDIA's driver starts the daemon as root; whether it serves another user depends on how it was set up."""
    for slot, users in _users_by_slot(layout).items():
        found = {said.value for said in users.values()}
        if len(found) == 1 and found != {ROOT}:
            user = next(iter(users.values()))
            yield Problem(
                Reason.MPS_USER_NOT_SERVED,
                f"The pods of GPU {slot} run as user {user.value}, which an MPS daemon that root started may refuse "
                "(CUDA_ERROR_MPS_CONNECTION_FAILED).",
                user.path,
                Severity.WARNING,
                slot=slot,
                stages=tuple(stage.name for stage in layout.on_slot(slot)),
                remedy=f"Remove runAsUser; or {_MULTI_USER}.",
            )


def namespaces_of_daemon(layout: Layout) -> Problems:
    """Root of a user namespace is not the root that the daemon serves."""
    found: dict[str, Problem] = {}
    for pod in _pods(layout):
        for template in pod.templates:
            if pod.root and template.spec.get("hostUsers") is False:
                path = f"{template.path}.spec.hostUsers"
                found[path] = Problem(
                    Reason.MPS_USERS_DIFFER,
                    f"In a user namespace of its own the pod of {pod.name} is not the user that its MPS daemon serves.",
                    path,
                    remedy="Remove hostUsers, or use strategy TimeSlicing.",
                )
    yield from found.values()


def _users_by_slot(layout: Layout) -> Mapping[int, Mapping[str, _Said]]:
    """Who opens each GPU that is shared under an MPS daemon of one user."""
    users: dict[int, dict[str, _Said]] = {}
    for pod in _pods(layout):
        for slot in pod.slots if pod.root else ():
            if layout.under_mps((slot,)):
                users.setdefault(slot, {})[pod.name] = _contexts(pod)[STAGE]["runAsUser"]
    return users


def _contexts(pod: _Pod) -> Mapping[str, Mapping[str, _Said]]:
    """User and runAsNonRoot of each container: its own, or else the pod's."""
    whole = {"runAsUser": _Said(ROOT if pod.root else USER), "runAsNonRoot": _Said(not pod.root)}
    for template in pod.templates:
        whole |= _said(template.spec.get("securityContext", {}), f"{template.path}.spec.securityContext")
    found = {pod.component: dict(whole)}
    for part in pod.parts():
        own = found.setdefault(part.name, dict(whole))
        own |= _said(part.fields.get("securityContext", {}), f"{part.path}.securityContext")
    return found


def _said(context: Mapping[str, Any], path: str) -> dict[str, _Said]:
    return {name: _Said(context[name], f"{path}.{name}") for name in ("runAsUser", "runAsNonRoot") if name in context}
