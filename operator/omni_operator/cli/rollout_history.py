"""The accepted specs of an OmniModel, and the way back to one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any

import yaml

from omni_operator.api.reasons import ConditionType
from omni_operator.cli.documents import BadInput, Document, Place
from omni_operator.cli.judge import Options, judge
from omni_operator.cli.live import Cluster
from omni_operator.cli.live_model import LiveModel, Manifest, Readings
from omni_operator.cli.live_parse import live_model, time_of
from omni_operator.cli.live_read import model_of
from omni_operator.cli.live_text import age
from omni_operator.cli.paint import DIM, PLAIN, Canvas, Line, Span, canvas_for, table, wrapped
from omni_operator.cli.spec_changes import changes, in_short
from omni_operator.kube.client import OMNI_MODELS, KubeError
from omni_operator.kube.revisions import revisions_of
from omni_operator.planning.history import Revision, kept_part, restored, spec_hash
from omni_operator.planning.layout import refused

MANAGER = "kubectl-omni"
FAILED_TEST = "the server rejected our request due to an error in our request"
"""All that an API server says of a patch whose test fails; of a spec that is not valid it names the field."""


async def show(cluster: Cluster, name: str, number: int | None, out: IO[str]) -> int:
    """Prints the table, or the spec of one revision. Raises BadInput, KubeError."""
    manifest = await model_of(cluster, name)
    kept = await revisions_of(cluster.client, dict(manifest))
    if number is not None:
        spec = dict(_of_number(kept, number, name).spec)
        out.write(yaml.safe_dump({"spec": spec}, sort_keys=False, allow_unicode=True, width=120))
        return 0
    canvas = canvas_for(out)
    out.write(canvas.draw(history_lines(live_model(manifest, Readings()), manifest, kept, datetime.now(UTC), canvas)))
    return 0


def history_lines(
    model: LiveModel, manifest: Manifest, kept: Sequence[Revision], now: datetime, canvas: Canvas
) -> list[Line]:
    """The oldest first, as kubectl has it; `*` marks the one that the spec is at."""
    if not kept:
        return wrapped([Span(f"{model.name} has no accepted spec yet.")], canvas.columns, 2)
    rows = [("REVISION", "GENERATION", "ACCEPTED", "CHANGE")]
    here = spec_hash(manifest["spec"])
    for before, revision in zip((None, *kept), kept, strict=False):
        what = "the oldest that is kept" if before is None else in_short(changes(before.spec, revision.spec))
        number = f"{revision.number}{'*' if revision.hash == here else ''}"
        ago = age(time_of(revision.accepted), now)
        rows.append((number, str(revision.generation or "-"), ago if ago == "-" else f"{ago} ago", what))
    return [*table(rows, canvas), *_beyond(model, manifest, kept, canvas)]


def _beyond(model: LiveModel, manifest: Manifest, kept: Sequence[Revision], canvas: Canvas) -> list[Line]:
    """What there is to say of a spec that is not in the table."""
    if any(revision.hash == spec_hash(manifest["spec"]) for revision in kept):
        return []
    accepted = model.condition(ConditionType.ACCEPTED)
    why = "was not looked at yet"
    if model.current and accepted is not None and not accepted.good:
        why = f"is refused ({accepted.reason})"
    words = in_short(changes(kept[-1].spec, kept_part(manifest["spec"])))
    text = f"The spec as it is now, generation {model.generation}, {why}: {words}."
    back = f"kubectl omni rollout undo {model.name} goes back to revision {kept[-1].number}."
    told = [wrapped([Span(f"  {words}", style)], canvas.columns, 2) for words, style in ((text, PLAIN), (back, DIM))]
    return [[Span("")], *(line for lines in told for line in lines)]


async def undo(cluster: Cluster, name: str, number: int | None, dry_run: bool) -> int:
    """Makes the spec an earlier one. Raises BadInput, KubeError."""
    manifest = await model_of(cluster, name)
    kept = await revisions_of(cluster.client, dict(manifest))
    target = _of_number(kept, number, name) if number is not None else _before(kept, manifest, name)
    spec = restored(target.spec, manifest["spec"])
    found = changes(kept_part(manifest["spec"]), kept_part(spec))
    if not found:
        raise BadInput(f"is at revision {target.number} already", Place(f"omnimodel {name}"))
    _check(manifest, spec, target)
    await write_spec(cluster, manifest, spec, dry_run)
    done = "would go back" if dry_run else "goes back"
    print(f"omnimodel {name} {done} to revision {target.number}:")
    for words in found:
        print(f"  {words}")
    if not dry_run:
        print(f"Follow it with: kubectl omni rollout status {name}")
    return 0


def _before(kept: Sequence[Revision], manifest: Manifest, name: str) -> Revision:
    """The revision before the spec's own; the last one, where the spec was never accepted."""
    place = Place(f"omnimodel {name}")
    if not kept:
        raise BadInput("has no accepted spec that one could go back to", place)
    here = next((revision for revision in kept if revision.hash == spec_hash(manifest["spec"])), None)
    if here is None:
        return kept[-1]
    earlier = [revision for revision in kept if revision.number < here.number]
    if not earlier:
        raise BadInput(f"has no accepted spec before revision {here.number} that one could go back to", place)
    return earlier[-1]


def _of_number(kept: Sequence[Revision], number: int, name: str) -> Revision:
    found = next((revision for revision in kept if revision.number == number), None)
    if found is None:
        there = ", ".join(str(revision.number) for revision in kept) or "none"
        raise BadInput(f"has no revision {number}; there are: {there}", Place(f"omnimodel {name}"))
    return found


def _check(manifest: Manifest, spec: Mapping[str, Any], target: Revision) -> None:
    """Say where today's rules refuse what was accepted then: the operator may have been upgraded. It is no obstacle,
    since the operator leaves running what runs."""
    document = Document({**manifest, "spec": spec}, {(): Place(f"revision {target.number}")})
    problems = judge(document, Options()).problems
    if refused(problems):
        sys.stderr.write(f"warning: revision {target.number} would be refused now: {problems[0]}\n")


async def write_spec(cluster: Cluster, manifest: Manifest, spec: Mapping[str, Any], dry_run: bool) -> None:
    """Only over the very spec that was looked at. Raises BadInput where it is another one by now, and KubeError."""
    meta = manifest["metadata"]
    place = Place(f"omnimodel {meta['name']}")
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
        {"op": "test", "path": "/spec", "value": manifest["spec"]},
        {"op": "replace", "path": "/spec", "value": dict(spec)},
    ]
    try:
        await cluster.client.json_patch(
            OMNI_MODELS, meta["namespace"], meta["name"], patch, manager=MANAGER, dry_run=dry_run
        )
    except KubeError as error:
        if error.status == 422 and FAILED_TEST in error.message:
            raise BadInput("was changed meanwhile; look again, and try again", place) from None
        raise
