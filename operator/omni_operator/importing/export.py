"""An OmniModel → the configuration file that sglang-omni 0.1.9 reads.

Promises a file that 0.1.9's own loader accepts, with the same sums per GPU. Only what differs from the pipeline's class
is written. What upstream cannot say is a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import yaml

from omni_operator.api.enums import SharingStrategy
from omni_operator.api.quantities import Amount, Share
from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.catalogue import StageDefault, pipelines
from omni_operator.importing import budgets
from omni_operator.importing.notes import ImportProblem, Note, NoteKind, NoteReason
from omni_operator.planning.layout import Layout, Stage
from omni_operator.planning.resolve import resolve

_SHARES_ONLY = frozenset({"Qwen3OmniSpeechColocatedPipelineConfig"})
"""Classes whose placement policy takes fractions only (`models/qwen3_omni/placement.py`): amounts become shares of the
planned card."""
ENGINE_FIRST = frozenset({
    "context_length", "cuda_graph_max_bs", "dllm_algorithm", "dllm_algorithm_config", "dtype", "enable_torch_compile",
    "max_running_requests", "mem_fraction_static", "mm_attention_backend", "torch_compile_max_bs",
})  # fmt: skip
"""Arguments that an engine stage's factory takes, and SGLang too: they are SGLang's."""
_MPS = {SharingStrategy.MPS: "on", SharingStrategy.TIME_SLICING: "off", SharingStrategy.NONE: "off"}


@dataclass(frozen=True)
class Exported:
    """A configuration as plain data, and what it lacks."""

    document: Mapping[str, Any]
    notes: tuple[Note, ...] = ()

    def yaml(self) -> str:
        """The text of the file."""
        return yaml.safe_dump(dict(self.document), sort_keys=False, allow_unicode=True, width=120)


def export(spec: OmniModelSpec, *, name: str | None = None, layout: Layout | None = None) -> Exported:
    """The file for one pipeline replica of `spec`. `layout` adds what a spec cannot say, such as copies of stages.

    Raises ImportProblem where the spec does not resolve, or is no pipeline of sglang-omni.
    """
    resolution = resolve(spec)
    if resolution.layout is None:
        raise ImportProblem(f"cannot be exported: {resolution.problems[0]}")
    resolved = resolution.layout if layout is None else layout
    pipeline = pipelines().get(resolved.pipeline)
    if pipeline is None or resolved.variant not in pipeline.variants or not pipeline.architectures:
        raise ImportProblem(f"cannot be exported: sglang-omni has no pipeline {resolved.pipeline}/{resolved.variant}")
    variant = pipeline.variants[resolved.variant]
    notes: list[Note] = []
    document: dict[str, Any] = {"config_cls": variant.config_class, "model_path": spec.model.id}
    if name is not None:
        document["name"] = name
    document["mps"] = _MPS.get(resolved.strategy, "auto")
    if resolved.limit != 1:
        document["placement"] = {"max_total_gpu_memory_fraction_per_gpu": _decimal(resolved.limit)}
    defaults = {stage.name: stage for stage in variant.stages}
    if variant.config_class in _SHARES_ONLY:
        resolved = _in_shares(resolved, notes)
    stages, processes = _stages(spec, resolved, defaults, notes)
    if stages:
        document["stages"] = stages
    if processes:
        document["processes"] = processes
    notes += _lost(spec)
    return Exported(document, tuple(notes))


def _in_shares(layout: Layout, notes: list[Note]) -> Layout:
    stages = []
    for stage in layout.stages:
        if isinstance(stage.budget, Amount):
            if layout.card is None:
                raise ImportProblem(f"cannot be exported: {stage.name} needs a share of a card, and no card is set")
            text = f"{stage.budget} of {stage.name} is written as a share of {layout.card.name}, as the class wants it."
            notes.append(Note(NoteKind.UNIT, NoteReason.UNIT, text, f"{stage.path}.gpuMemory"))
            stage = replace(stage, budget=Share(Fraction(stage.budget.value, layout.card.memory)))
        stages.append(stage)
    return replace(layout, stages=tuple(stages))


def _stages(
    spec: OmniModelSpec, layout: Layout, defaults: Mapping[str, StageDefault], notes: list[Note]
) -> tuple[dict[str, Any], dict[str, Any]]:
    envs = {stage.name: {variable.name: variable.value for variable in stage.env or []} for stage in spec.stages or []}
    copies: dict[str, list[Stage]] = {}
    for stage in layout.stages:
        copies.setdefault(budgets.logical_name(stage), []).append(stage)
    stages: dict[str, Any] = {}
    processes: dict[str, Any] = {}
    for name, rows in copies.items():
        if name not in defaults:
            raise ImportProblem(f"cannot be exported: {layout.pipeline}/{layout.variant} has no stage {name}")
        process = rows[0].process.partition("@r")[0]
        body = _stage(rows[0], process, defaults[name], notes)
        if envs.get(name):
            body["env"] = envs[name]
        if body:
            stages[name] = body
        devices = [slot for row in rows for _ in range(row.copies) for slot in row.slots]
        if sum(row.copies for row in rows) > 1:
            processes[process] = {"num_replicas": sum(row.copies for row in rows), "replica_devices": devices}
    return stages, processes


def _stage(stage: Stage, process: str, default: StageDefault, notes: list[Note]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if stage.slots != default.slots:
        body.update(_gpu(stage.slots, default))
    if process != default.process:
        body["process"] = process
    body.update(_budget(stage, default))
    arguments, factory = _split(stage, default)
    if stage.kv_cache is not None:
        # Upstream refuses both; the class may have set the fraction.
        arguments.update(kv_cache_bytes=stage.kv_cache, mem_fraction_static=None)
    if arguments and not default.engine:
        listed = ", ".join(arguments)
        notes.append(
            _lacks(f"{stage.name} runs no engine, so its arguments are left out: {listed}", f"{stage.path}.engineArgs")
        )
    elif arguments:
        body["engine"] = arguments
    if factory:
        body["factory"] = factory
    return body


def _gpu(slots: tuple[int, ...], default: StageDefault) -> dict[str, Any]:
    if not slots:
        return {"gpu": None}
    if len(slots) == 1:
        return {"gpu": slots[0], "tp_size": 1} if len(default.slots) > 1 else {"gpu": slots[0]}
    return {"gpu": list(slots), "tp_size": len(slots)}


def _budget(stage: Stage, default: StageDefault) -> dict[str, Any]:
    """One of the two spellings; the other is cleared where the class has it."""
    if stage.budget == default.budget:
        return {}
    if isinstance(stage.budget, Share):
        cleared = {"total_reserve_bytes": None} if isinstance(default.budget, Amount) else {}
        return {**cleared, "gpu_memory_fraction": _decimal(stage.budget.value)}
    if isinstance(stage.budget, Amount):
        cleared = {"gpu_memory_fraction": None} if isinstance(default.budget, Share) else {}
        return {**cleared, "total_reserve_bytes": stage.budget.value}
    return {"gpu_memory_fraction" if isinstance(default.budget, Share) else "total_reserve_bytes": None}


def _split(stage: Stage, default: StageDefault) -> tuple[dict[str, Any], dict[str, Any]]:
    """The stage's arguments, those of its engine and those of its factory, as the stage container tells them apart."""
    factory = {name for name in default.arguments if not (default.engine and name in ENGINE_FIRST)}
    return (
        {name: value for name, value in stage.engine_args.items() if name not in factory},
        {name: value for name, value in stage.engine_args.items() if name in factory},
    )


def _decimal(value: Fraction) -> float:
    """The number that YAML writes with the same digits. It is output only: nothing here is decided by it."""
    return float(value)


def _lost(spec: OmniModelSpec) -> list[Note]:
    notes = []
    if (spec.replicas or 1) > 1:
        notes.append(
            _lacks(f"the file is one replica; start it {spec.replicas} times behind a router", "spec.replicas")
        )
    for i, stage in enumerate(spec.stages or []):
        for field, what in (
            ("compute_percentage", "computePercentage"),
            ("start_order", "startOrder"),
            ("startup_timeout", "startupTimeout"),
            ("resources", "resources"),
        ):
            if getattr(stage, field) is not None:
                notes.append(_lacks(f"sglang-omni has no {what} for a stage", f"spec.stages[{i}].{what}"))
    return notes


def _lacks(what: str, field: str) -> Note:
    return Note(NoteKind.NOT_CARRIED, NoteReason.NOT_SUPPORTED, f"Not carried over: {what}.", field)
