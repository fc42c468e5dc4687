"""A file of vLLM-Omni → its layouts by platform, and an OmniModel on sglang-omni where the stages correspond."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omni_operator.catalogue import Pipeline, Variant
from omni_operator.importing import budgets, manifest, placing, variants, vllm_correspondence
from omni_operator.importing.found import Found, FoundStage
from omni_operator.importing.from_sglang import Wanted
from omni_operator.importing.notes import Note, NoteKind, NoteReason
from omni_operator.importing.result import Imported
from omni_operator.importing.vllm_deploy import DEFAULT_PLATFORM
from omni_operator.planning.layout import Layout, Stage


def assemble(platforms: Mapping[str, Found], wanted: Wanted, source: str) -> Imported:
    """The import of one file. The manifest is for the first platform, which is NVIDIA's."""
    found = next(iter(platforms.values()))
    placed = _place(found, wanted)
    layout = _layout(found, placed, wanted)
    notes = list(found.notes)
    spec = _spec(found, placed, wanted, notes)
    notes += placing.copy_notes(placed, {stage.name: stage.path for stage in found.stages})
    notes += budgets.ask(layout, {})
    notes += budgets.uncapped_copies(layout, {stage.name: stage.token_cap for stage in found.stages})
    notes += _platform_notes(platforms, notes)
    manifest.card_note(len(layout.slots), wanted.card.name if wanted.card else None, notes)
    layouts = {name: _layout(one, _place(one, wanted), wanted) for name, one in platforms.items()}
    manifest.validated(spec)
    name = manifest.object_name(wanted.name, manifest.stem(source), found.pipeline)
    return Imported(found.form, manifest.manifest(name, spec), layout, tuple(notes), layouts, placed.slots)


def _place(found: Found, wanted: Wanted) -> placing.Placed:
    groups: dict[str, placing.Groups] = {}
    for stage in found.stages:
        # Without devices vLLM-Omni takes the first visible ones.
        copies = stage.copies or (stage.devices if stage.devices is not None else (0,),)
        groups[stage.name] = copies * wanted.copies if any(copies) else copies
    return placing.place(groups)


def _layout(found: Found, placed: placing.Placed, wanted: Wanted) -> Layout:
    rows: list[Stage] = []
    for stage in found.stages:
        base = Stage(
            name=stage.name,
            process=stage.name,
            budget=stage.budget,
            engine=not stage.diffusion,
            keeps_share=not stage.diffusion,
            kv_cache=stage.kv_cache,
            path=f"spec.stages[name={stage.name}]",
        )
        rows += placing.spread(base, placed.groups[stage.name])
    return Layout(found.pipeline or "unknown", "vllm-omni", tuple(rows), wanted.card)


def _spec(found: Found, placed: placing.Placed, wanted: Wanted, notes: list[Note]) -> dict[str, Any]:
    slots = {stage.name: placing.first(placed.groups[stage.name]) for stage in found.stages}
    pipeline, variant, names = _counterpart(found, wanted, slots)
    missing = (
        f"Which pipeline? vLLM-Omni's {found.pipeline} has no counterpart in the catalogue."
        if found.pipeline
        else "Which pipeline? The file does not name one."
    )
    variant_name = variant.name if pipeline and variant and variant.name != pipeline.default_variant else None
    spec: dict[str, Any] = {
        "engine": manifest.ENGINE,
        "model": manifest.model_source(
            wanted.model or found.model,
            pipeline.name if pipeline else None,
            variant_name,
            notes,
            missing_pipeline=missing,
        ),
    }
    if wanted.card is not None:
        spec["gpus"] = manifest.card_fields(wanted.card)
    spec["stages"] = [
        _entry(stage, names.get(stage.name, stage.name), slots[stage.name], notes) for stage in found.stages
    ]
    if placed.replicas > 1:
        spec["replicas"] = placed.replicas
    notes += _defaulted(found, placed)
    notes += _engine_notes(pipeline, variant, names, found)
    return spec


def _counterpart(
    found: Found, wanted: Wanted, slots: Mapping[str, tuple[int, ...]]
) -> tuple[Pipeline | None, Variant | None, Mapping[str, str]]:
    chosen = variants.chosen(wanted.pipeline, wanted.variant)
    match = vllm_correspondence.find(found.pipeline)
    if match is None or not all(stage.name in match[0].stages for stage in found.stages):
        if chosen is None:
            return None, None, {}
        own = {stage.name for stage in chosen[1].stages}
        return chosen[0], chosen[1], {stage.name: _similar(stage.name, own) for stage in found.stages}
    row, pipeline = match
    if chosen is not None and chosen[0].name != pipeline.name:
        return chosen[0], chosen[1], {}
    return pipeline, chosen[1] if chosen else vllm_correspondence.variant_of(row, pipeline, slots), row.stages


def _similar(name: str, own: set[str]) -> str:
    """The catalogue's stage of the same name, give or take a suffix such as `_ar`."""
    if name in own:
        return name
    close = sorted(candidate for candidate in own if candidate.startswith(f"{name}_"))
    return close[0] if len(close) == 1 else name


def _entry(stage: FoundStage, name: str, slots: tuple[int, ...], notes: list[Note]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": manifest.stage_name(name), "gpus": list(slots)}
    if stage.budget is not None and slots:
        entry["gpuMemory"] = manifest.budget_text(stage.budget, f"spec.stages[name={name}].gpuMemory", notes)
    if stage.kv_cache is not None:
        entry["kvCache"] = str(manifest.amount_text(stage.kv_cache))
    return entry


def _defaulted(found: Found, placed: placing.Placed) -> list[Note]:
    return [
        Note(
            NoteKind.ASSUMPTION,
            NoteReason.DEVICES_MISSING,
            f"{stage.name} lists no devices; counted on the first, which vLLM-Omni would take.",
            f"{stage.path}.devices",
        )
        for stage in found.stages
        if stage.devices is None and not stage.copies and placed.groups[stage.name] != ((),)
    ]


def _engine_notes(
    pipeline: Pipeline | None, variant: Variant | None, names: Mapping[str, str], found: Found
) -> Iterable[Note]:
    yield Note(
        NoteKind.ASSUMPTION,
        NoteReason.ENGINE_CHANGES,
        "The stages run on sglang-omni here. Devices and shares are carried over, vLLM-Omni's other arguments are not.",
        "spec.engine",
    )
    if pipeline is None or variant is None:
        return
    own = {stage.name: stage for stage in variant.stages}
    for stage in found.stages:
        if names.get(stage.name, stage.name) not in own:
            yield Note(
                NoteKind.ASK,
                NoteReason.STAGE_UNKNOWN,
                f"{pipeline.name}/{variant.name} has no stage {stage.name}; it has {', '.join(own)}. Which one is it?",
                f"spec.stages[name={stage.name}].name",
            )
    taken = {names.get(stage.name, stage.name) for stage in found.stages}
    for name, default in own.items():
        if name not in taken and default.slots:
            has = f"; the catalogue's {default.budget} would come on top" if default.budget else ""
            yield Note(
                NoteKind.ASK,
                NoteReason.BUDGET_UNKNOWN,
                f"How much memory does {name} take? In vLLM-Omni it is part of another stage, and of its share{has}.",
                f"spec.stages[name={name}].gpuMemory",
            )


def _platform_notes(platforms: Mapping[str, Found], seen: Iterable[Note]) -> list[Note]:
    """Notes of the other platforms that the first has not."""
    notes: list[Note] = []
    before = set(seen)
    for name, found in platforms.items():
        if name == DEFAULT_PLATFORM:
            continue
        notes.append(
            Note(
                NoteKind.NOT_CARRIED,
                NoteReason.NOT_SUPPORTED,
                f"The manifest is for NVIDIA's GPUs; {name} has a layout of its own here, and no OmniModel.",
                f"platforms.{name}",
            )
        )
        notes += [
            Note(note.kind, note.reason, f"On {name}: {note.message}", note.field, note.version)
            for note in found.notes
            if note not in before and note.kind in (NoteKind.ASK, NoteKind.WARNING)
        ]
    return notes
