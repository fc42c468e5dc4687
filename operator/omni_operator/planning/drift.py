"""What someone else changed on a child that is otherwise current, and how it is put back.

Told by comparing what is rendered with what is there, so that no write of someone else goes unseen and none of ours
is made without need. What we do not render is not ours: more labels, a Service's type, another port stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_operator.api import names
from omni_operator.planning.observed import ChildKind
from omni_operator.planning.rollout import Child, Rendered

Live = Mapping[tuple[ChildKind, str], Mapping[str, Any]]
"""Children as the API has them."""

FOR_PEOPLE = frozenset({names.GENERATION_ANNOTATION})
"""Annotations that say when a child was made, and so differ without anything being wrong."""
STEERS = frozenset({names.MODEL_LABEL, names.REPLICA_LABEL, names.COMPONENT_LABEL, names.PROCESS_LABEL})


@dataclass(frozen=True)
class Relabel:
    """Labels and annotations to put back on a pod or a claim, whose spec nobody can change."""

    kind: ChildKind
    name: str
    uid: str
    metadata: Mapping[str, Mapping[str, str]] = field(compare=False)


@dataclass(frozen=True)
class Reimage:
    """An image to put back in a running pod, the one field of it that others can change to harm.

    kubelet ended the container when the image was edited, and does so once more: that restarts this stage in place,
    where a new pod would also give up its place. A deadline (activeDeadlineSeconds) cannot be taken back; a pod that
    ended by it is replaced as any other. More tolerations change nothing for a pod that has a node.
    """

    name: str
    uid: str
    container: int
    container_name: str
    image: str


@dataclass(frozen=True)
class Repairs:
    """Writes beside those of the step, of objects that the step leaves alone."""

    apply: tuple[Child, ...] = ()
    relabel: tuple[Relabel, ...] = ()
    reimage: tuple[Reimage, ...] = ()

    @property
    def count(self) -> int:
        """How many objects have to be put back."""
        return len(self.apply) + len(self.relabel) + len(self.reimage)

    @property
    def misleads(self) -> bool:
        """Whether labels are wrong by which a step finds its way: it could remove a pod for its replica's number."""
        return any(STEERS & set(edited.metadata.get("labels", {})) for edited in self.relabel)


def repairs(rendered: Rendered, live: Live) -> Repairs:
    """What to put back. An outdated child is left to the rollout, one that is going to its end."""
    shared = tuple(child for child in rendered.shared if _specs_differ(child, _current(child, live)))
    replicas = [child for children in rendered.replicas.values() for child in children]
    relabel = tuple(found for child in replicas for found in _relabel(child, _current(child, live)))
    reimage = tuple(found for child in replicas for found in _reimage(child, _current(child, live)))
    return Repairs(shared, relabel, reimage)


def _current(child: Child, live: Live) -> Mapping[str, Any] | None:
    """The object if it is there, stays, and was made from what is rendered now."""
    found = live.get((child.kind, child.name))
    if found is None or "deletionTimestamp" in found["metadata"]:
        return None
    annotations = found["metadata"].get("annotations") or {}
    return found if annotations.get(names.HASH_ANNOTATION) == child.hash else None


def _specs_differ(child: Child, found: Mapping[str, Any] | None) -> bool:
    if found is None:
        return False
    spec = found.get("spec") or {}
    return bool(_lost_metadata(child, found)) or not all(
        _same(key, value, spec.get(key)) for key, value in child.manifest["spec"].items()
    )


def _same(key: str, wanted: Any, found: Any) -> bool:
    """Whether a field of a spec is as rendered. All are written whole, but for a Service's ports, which the API merges
    by port and protocol, and to which it adds what it chose itself."""
    if key != "ports":
        return bool(wanted == found)
    return all(any(port.items() <= other.items() for other in found or []) for port in wanted)


def _relabel(child: Child, found: Mapping[str, Any] | None) -> Iterator[Relabel]:
    if found is None:
        return
    lost = _lost_metadata(child, found)
    if lost:
        yield Relabel(child.kind, child.name, found["metadata"]["uid"], lost)


def _reimage(child: Child, found: Mapping[str, Any] | None) -> Iterator[Reimage]:
    """Containers are found by name: an admission webhook may have put its own in front."""
    if found is None or child.kind is not ChildKind.POD:
        return
    live = {container["name"]: (i, container.get("image")) for i, container in enumerate(found["spec"]["containers"])}
    for container in child.manifest["spec"]["containers"]:
        name = container["name"]
        index, image = live.get(name, (0, container["image"]))
        if image != container["image"] and _edited(found, name):
            yield Reimage(child.name, found["metadata"]["uid"], index, name, container["image"])


def _edited(found: Mapping[str, Any], container: str) -> bool:
    """Whether someone else wrote the image since the pod was made. What admission made of ours, such as the address of
    a mirror, counts as written by us, and stays."""
    for row in found["metadata"].get("managedFields") or []:
        fields = (row.get("fieldsV1") or {}).get("f:spec", {}).get("f:containers", {})
        written = "f:image" in fields.get(f'k:{{"name":"{container}"}}', {})
        if written and row.get("manager") != names.MANAGER:
            return True
    return False


def _lost_metadata(child: Child, found: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """Labels and annotations that are rendered, and are not there with that value."""
    lost: dict[str, Mapping[str, str]] = {}
    for part in ("labels", "annotations"):
        have = found["metadata"].get(part) or {}
        wanted = child.manifest["metadata"][part]
        gone = {key: value for key, value in wanted.items() if key not in FOR_PEOPLE and have.get(key) != value}
        if gone:
            lost[part] = gone
    return lost
