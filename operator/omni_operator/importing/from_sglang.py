"""A file of sglang-omni and the catalogue's pipeline, together → an OmniModel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from omni_operator.api.enums import SharingStrategy
from omni_operator.api.quantities import parse_percent
from omni_operator.catalogue import Card, Pipeline, StageDefault, Variant
from omni_operator.importing import budgets, manifest, placing, sglang_places, variants
from omni_operator.importing.found import Form, Found, FoundStage
from omni_operator.importing.notes import Note, NoteKind, NoteReason
from omni_operator.importing.result import Imported
from omni_operator.planning.layout import Layout, Stage
from omni_operator.planning.resolve import resolve

_STRATEGY = {"on": "MPS", "off": "TimeSlicing"}
"""`auto` is what a missing field means here."""
_SPLIT = "@"


@dataclass(frozen=True)
class Wanted:
    """What the user says beside the file."""

    card: Card | None = None
    model: str | None = None
    pipeline: str | None = None
    variant: str | None = None
    name: str | None = None
    copies: int = 1
    """Copies of the whole pipeline on the same GPUs, as sglang-omni's MPS data parallelism starts them."""


def assemble(found: Found, wanted: Wanted, source: str) -> Imported:
    """The import of one file."""
    notes = list(found.notes)
    match = variants.chosen(wanted.pipeline, wanted.variant) or variants.find(found.config_class, found.model)
    stages = _with_defaults(found, match)
    groups = sglang_places.groups_of(stages, _defaults(match), found.replicas, notes)
    if wanted.copies > 1:
        groups = {name: copies * wanted.copies if any(copies) else copies for name, copies in groups.items()}
    placed = placing.place(groups)
    spec = _spec(found, wanted, match, stages, placed, notes)
    layout = _layout(found, wanted, match, spec, stages, placed)
    notes += placing.copy_notes(placed, {stage.name: stage.path for stage in stages})
    notes += _unknown_stages(stages, match)
    notes += budgets.ask(layout, {s.name: s.static_fraction for s in stages if s.static_fraction is not None})
    notes += budgets.uncapped_copies(layout, {stage.name: stage.token_cap for stage in stages})
    notes += _other_notes(found, match, layout)
    manifest.card_note(len(layout.slots), wanted.card.name if wanted.card else None, notes)
    name = manifest.object_name(wanted.name, found.name, found.model, manifest.stem(source))
    return Imported(found.form, manifest.manifest(name, spec), layout, tuple(notes), slots=placed.slots)


def _defaults(match: tuple[Pipeline, Variant] | None) -> Mapping[str, StageDefault]:
    return {stage.name: stage for stage in match[1].stages} if match else {}


def _with_defaults(found: Found, match: tuple[Pipeline, Variant] | None) -> tuple[FoundStage, ...]:
    """The file's stages in pipeline order, and those that it leaves to the pipeline."""
    by_name = {stage.name: stage for stage in found.stages}
    halves = {stage.name.partition(_SPLIT)[0] for stage in found.stages if _SPLIT in stage.name}
    ordered: list[FoundStage] = []
    for name in _defaults(match):
        if name in halves:
            ordered += [stage for stage in found.stages if stage.name.startswith(name + _SPLIT)]
        else:
            ordered.append(by_name.get(name) or FoundStage(name, ""))
    names = {stage.name for stage in ordered}
    ordered += [stage for stage in found.stages if stage.name not in names]
    if match is None and not found.stages:
        # Of an unknown pipeline only the processes are known; each stands for its stages.
        ordered += [FoundStage(name, f"processes.{name}", process=name) for name in found.replicas]
    return tuple(ordered)


def _spec(
    found: Found,
    wanted: Wanted,
    match: tuple[Pipeline, Variant] | None,
    stages: Iterable[FoundStage],
    placed: placing.Placed,
    notes: list[Note],
) -> dict[str, Any]:
    variant = None
    if match is not None and match[1].name != match[0].default_variant:
        variant = match[1].name
    missing = f"Which pipeline? The catalogue does not know {found.config_class or 'the model of this file'}."
    pipeline = match[0].name if match else wanted.pipeline
    spec: dict[str, Any] = {
        "engine": manifest.ENGINE,
        "model": manifest.model_source(
            wanted.model or found.model, pipeline, variant, notes, missing_pipeline=missing
        ),
    }  # fmt: skip
    gpus: dict[str, Any] = {}
    if wanted.card is not None:
        gpus |= manifest.card_fields(wanted.card)
    if found.mps in _STRATEGY:
        gpus["sharing"] = {"strategy": _STRATEGY[found.mps]}
    if found.max_share not in (None, "100%"):
        gpus["maxShare"] = found.max_share
    if gpus:
        spec["gpus"] = gpus
    known = _defaults(match)
    entries = [
        entry
        for stage in stages
        if (not known or stage.name in known)
        and (entry := _entry(stage, placed, known.get(stage.name), moved=_moved(stage, known, placed), notes=notes))
    ]
    if entries:
        spec["stages"] = entries
    if placed.replicas > 1:
        spec["replicas"] = placed.replicas
    return spec


def _moved(stage: FoundStage, known: Mapping[str, StageDefault], placed: placing.Placed) -> bool:
    """Whether the manifest must say where a stage goes, as it is not where the catalogue has it."""
    slots = placing.first(placed.groups.get(stage.name, ()))
    default = known.get(stage.name)
    return default is None or slots != default.slots


def _entry(
    stage: FoundStage, placed: placing.Placed, default: StageDefault | None, *, moved: bool, notes: list[Note]
) -> dict[str, Any] | None:
    entry: dict[str, Any] = {"name": manifest.stage_name(stage.name)}
    slots = placing.first(placed.groups.get(stage.name, ()))
    if moved:
        entry["gpus"] = list(slots)
    if stage.budget is not None and slots:
        entry["gpuMemory"] = manifest.budget_text(stage.budget, f"spec.stages[name={stage.name}].gpuMemory", notes)
    if stage.kv_cache is not None:
        entry["kvCache"] = str(manifest.amount_text(stage.kv_cache))
    if stage.process not in (None, stage.name):
        entry["process"] = manifest.stage_name(str(stage.process))
    arguments = _arguments(stage, default, notes)
    if arguments:
        entry["engineArgs"] = arguments
    env = _env(stage, notes)
    if env:
        entry["env"] = env
    return entry if len(entry) > 1 else None


def _arguments(stage: FoundStage, default: StageDefault | None, notes: list[Note]) -> dict[str, Any]:
    """Arguments by name. Of a stage without an engine its factory takes those that it has, and refuses the others."""
    if default is None or default.engine:
        return dict(stage.engine_args)
    strange = [name for name in stage.engine_args if name not in default.arguments]
    notes += [
        Note(
            NoteKind.NOT_CARRIED,
            NoteReason.NOT_SUPPORTED,
            f"Not carried over: {stage.name} takes no argument {name}"
            + (f"; it takes {', '.join(default.arguments)}." if default.arguments else "."),
            stage.path,
        )
        for name in strange
    ]
    return {name: value for name, value in stage.engine_args.items() if name not in strange}


def _env(stage: FoundStage, notes: list[Note]) -> list[dict[str, str]]:
    """Variables, without those that the operator and the GPU driver set."""
    result = []
    for key, value in stage.env.items():
        if key.startswith("CUDA_MPS_") or key.endswith("VISIBLE_DEVICES") or key == "NVIDIA_DRIVER_CAPABILITIES":
            why = "the operator and the GPU driver set this variable"
            field = f"{stage.path}.env.{key}"
            notes.append(Note(NoteKind.NOT_CARRIED, NoteReason.NOT_SUPPORTED, f"Not carried over: {why}.", field))
        else:
            result.append({"name": key, "value": value})
    return result


def _layout(
    found: Found,
    wanted: Wanted,
    match: tuple[Pipeline, Variant] | None,
    spec: Mapping[str, Any],
    stages: Iterable[FoundStage],
    placed: placing.Placed,
) -> Layout:
    """The manifest's own layout where it resolves, so that no two readings of it exist; then all copies of stages."""
    model = manifest.validated(spec)
    resolved = resolve(model).layout if match else None
    if resolved is None:
        limit = parse_percent(found.max_share) if found.max_share else Fraction(1)
        strategy = SharingStrategy(_STRATEGY.get(found.mps or "", "Auto"))
        resolved = Layout(
            found.config_class or "unknown", "unknown", (), wanted.card, limit, strategy=strategy
        )  # fmt: skip
    by_name = {stage.name: stage for stage in resolved.stages}
    known = _defaults(match)
    rows: list[Stage] = []
    for stage in stages:
        base = by_name.get(stage.name) or _own(stage, known.get(stage.name.partition(_SPLIT)[0]))
        rows += placing.spread(base, placed.groups.get(stage.name, ((),)))
    layout = replace(resolved, stages=tuple(rows))
    unclear = {stage.name for stage in stages if _guessed(stage, found.form)}
    return replace(
        layout,
        stages=tuple(
            replace(stage, budget=None)
            if budgets.logical_name(stage) in unclear and budgets.shared(layout, stage)
            else stage
            for stage in layout.stages
        ),
    )


def _guessed(stage: FoundStage, form: Form) -> bool:
    """Old files relied on mem_fraction_static; the share that today's class has is not what they ran with."""
    return form is not Form.SGLANG_STAGES_MAP and stage.static_fraction is not None and stage.budget is None


def _own(stage: FoundStage, default: StageDefault | None) -> Stage:
    return Stage(
        name=stage.name,
        process=stage.process or stage.name,
        budget=stage.budget or (default.budget if default else None),
        engine=default.engine if default else stage.static_fraction is not None,
        kv_cache=stage.kv_cache,
        engine_args=stage.engine_args,
        path=f"spec.stages[name={stage.name}]",
    )


def _unknown_stages(stages: Iterable[FoundStage], match: tuple[Pipeline, Variant] | None) -> list[Note]:
    if match is None:
        return []
    pipeline, variant = match
    known = _defaults(match)
    return [
        Note(
            NoteKind.ASK,
            NoteReason.PREFILL_DECODE_SPLIT if _SPLIT in stage.name else NoteReason.STAGE_UNKNOWN,
            f"{pipeline.name}/{variant.name} has no stage {stage.name}; it has {', '.join(known)}. It is "
            "counted in the sums, "
            "but is not in the manifest: what does it stand for?",
            f"spec.stages[name={stage.name}]",
        )
        for stage in stages
        if stage.name not in known
    ]


def _other_notes(found: Found, match: tuple[Pipeline, Variant] | None, layout: Layout) -> list[Note]:
    notes = []
    if found.weight_share:
        notes.append(
            Note(
                NoteKind.NOT_CARRIED,
                NoteReason.WEIGHT_SHARE,
                "weight_share is on: copies of a stage share one set of weights upstream. Pods cannot, so "
                "every copy holds "
                "its own, and budgets that only fit shared weights are too small.",
                "weight_share",
            )
        )
    said = {stage.name for stage in found.stages if stage.budget is not None}
    taken = [
        s for s in layout.stages if s.budget is not None and budgets.logical_name(s).partition(_SPLIT)[0] not in said
    ]
    if match is not None and taken:
        listed = ", ".join(f"{stage.name} {stage.budget}" for stage in taken if stage.name not in said)
        if listed:
            notes.append(
                Note(
                    NoteKind.ASSUMPTION,
                    NoteReason.DEFAULTS,
                    f"The catalogue's budgets where the file has none: {listed}.",
                )
            )
    notes += [
        Note(
            NoteKind.NOT_CARRIED,
            NoteReason.NOT_SUPPORTED,
            f"mem_fraction_static {stage.static_fraction} is not carried over: the operator gives the engine "
            "bytes, out of gpuMemory.",
            f"{stage.path}.engine.mem_fraction_static",
        )
        for stage in found.stages
        if stage.static_fraction is not None and stage.budget is not None
    ]
    return notes
