"""Catalogue and overrides → one layout. What cannot be resolved is a problem with the path of the field to change."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from omni_operator.api.quantities import GIB, Budget, QuantityError, parse_amount, parse_budget, parse_percent
from omni_operator.api.reasons import Reason
from omni_operator.api.v1alpha1 import (
    GpusSpec,
    OmniModelSpec,
    Placement,
    SharingBackend,
    SharingSpec,
    SharingStrategy,
    StageSpec,
)
from omni_operator.catalogue import Card, Pipeline, StageDefault, Variant, cards, known_models, pipelines
from omni_operator.planning.layout import Layout, Problem, Severity, Stage

DEFAULT_STARTUP_TIMEOUT = 1800
"""Seconds. A 30 B model needs more than 300 s to load from a cold disk; half an hour is vLLM-Omni's own init limit."""


@dataclass(frozen=True)
class Resolution:
    """A layout, or why there is none. Warnings may come with a layout."""

    layout: Layout | None
    problems: tuple[Problem, ...] = ()


class _Unresolved(Exception):
    """Ends resolving; carries the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def resolve(spec: OmniModelSpec) -> Resolution:
    """The layout of one pipeline replica of `spec`."""
    try:
        pipeline, variant = _pipeline_of(spec)
        gpus = spec.gpus or GpusSpec()
        card, warnings = _card_of(gpus)
        stages = _stages_of(spec, pipeline, variant)
        sharing = gpus.sharing or SharingSpec()
        layout = Layout(
            pipeline=pipeline.name,
            variant=variant.name,
            stages=stages,
            card=card,
            limit=parse_percent(gpus.max_share) if gpus.max_share else Fraction(1),
            strategy=sharing.strategy or SharingStrategy.AUTO,
            backend=sharing.backend or SharingBackend.AUTO,
            multi_user=bool(sharing.multi_user),
            placement=gpus.placement or Placement.SAME_NODE,
            process_local_edges=variant.process_local_edges,
            apart=variant.apart,
        )
        return Resolution(_with_concrete_sharing(layout), tuple(warnings))
    except _Unresolved as unresolved:
        return Resolution(None, (unresolved.problem,))
    except QuantityError as error:
        return Resolution(None, (Problem(Reason.INVALID_SPEC, f"spec: {error}."),))


def parse_duration(text: str) -> int:
    """Seconds of `1h30m`, `45m`, `90s`."""
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    if parts is None:
        raise QuantityError(f"{text!r} is not a duration such as 45m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + seconds


def _with_concrete_sharing(layout: Layout) -> Layout:
    """Auto becomes MPS where a slot is shared by several processes, otherwise None."""
    strategy = layout.strategy
    if strategy is SharingStrategy.AUTO:
        strategy = SharingStrategy.MPS if layout.shared_slots() else SharingStrategy.NONE
    backend = SharingBackend.DRA if layout.backend is SharingBackend.AUTO else layout.backend
    return replace(layout, strategy=strategy, backend=backend)


def _pipeline_of(spec: OmniModelSpec) -> tuple[Pipeline, Variant]:
    known = known_models().get(spec.model.id.lower())
    name = spec.model.pipeline or (known.pipeline if known else None)
    if name is None:
        raise _Unresolved(
            Problem(
                Reason.UNKNOWN_PIPELINE,
                f"The catalogue does not know which pipeline serves {spec.model.id!r}.",
                "spec.model.pipeline",
                remedy=f"Set spec.model.pipeline to one of: {', '.join(pipelines())}.",
            )
        )
    pipeline = pipelines().get(name)
    if pipeline is None:
        raise _Unresolved(
            Problem(
                Reason.UNKNOWN_PIPELINE,
                f"There is no pipeline {name!r}.",
                "spec.model.pipeline",
                remedy=_suggestion(name, pipelines()),
            )
        )
    wanted = spec.model.variant or (known.variant if known and known.pipeline == name else None)
    variant = pipeline.variants.get(wanted or pipeline.default_variant)
    if variant is None:
        raise _Unresolved(
            Problem(
                Reason.UNKNOWN_VARIANT,
                f"Pipeline {name} has no variant {wanted!r}.",
                "spec.model.variant",
                remedy=_suggestion(str(wanted), pipeline.variants),
            )
        )
    return pipeline, variant


def _card_of(gpus: GpusSpec) -> tuple[Card | None, list[Problem]]:
    if gpus.memory is not None:
        memory = parse_amount(gpus.memory)
        return Card(gpus.memory, memory), list(_suspect_size(gpus.memory, memory))
    if gpus.card is None:
        return None, []
    card = cards().get(gpus.card)
    if card is None:
        raise _Unresolved(
            Problem(
                Reason.UNKNOWN_CARD,
                f"The catalogue has no card {gpus.card!r}.",
                "spec.gpus.card",
                remedy=_suggestion(gpus.card, cards()) + " Or give its size as spec.gpus.memory.",
            )
        )
    return card, []


def _suspect_size(text: str, memory: int) -> Iterable[Problem]:
    """A card sold as 80 GB has 79.6 GiB: `memory: 80Gi` would match none of them."""
    sold = [card for card in cards().values() if memory in (card.sold_as * GIB, card.sold_as * 10**9)]
    short = [card for card in sold if card.memory < memory]
    if short:
        card = short[0]
        yield Problem(
            Reason.CARD_SIZE_SUSPECT,
            f"No {card.product} has {text}: it reports {card.memory // 2**20}Mi.",
            "spec.gpus.memory",
            Severity.WARNING,
            remedy=f"Write memory: {card.memory // 2**20}Mi, or card: {card.name}.",
        )


def _stages_of(spec: OmniModelSpec, pipeline: Pipeline, variant: Variant) -> tuple[Stage, ...]:
    overrides = {stage.name: (i, stage) for i, stage in enumerate(spec.stages or [])}
    names = {stage.name for stage in variant.stages}
    for name, (i, _) in overrides.items():
        if name not in names:
            raise _Unresolved(
                Problem(
                    Reason.UNKNOWN_STAGE,
                    f"{pipeline.name}/{variant.name} has no stage {name!r}.",
                    f"spec.stages[{i}].name",
                    remedy=_suggestion(name, [stage.name for stage in variant.stages]),
                )
            )
    timeout = parse_duration(spec.startup_timeout) if spec.startup_timeout else DEFAULT_STARTUP_TIMEOUT
    local = {name for edge in variant.process_local_edges for name in edge}
    return tuple(
        _stage(
            default, overrides.get(default.name), default.process if default.name in local else default.name, timeout
        )
        for default in variant.stages
    )


def _stage(default: StageDefault, found: tuple[int, StageSpec] | None, process: str, timeout: int) -> Stage:
    if found is None:
        path = f"spec.stages[name={default.name}]"
        return Stage(
            default.name, process, default.slots, default.budget, default.engine, startup_timeout=timeout, path=path
        )
    index, override = found
    path = f"spec.stages[{index}]"
    slots = default.slots if override.gpus is None else tuple(override.gpus)
    ranks = override.tensor_parallel_size
    if ranks is not None and ranks != max(1, len(slots)):
        raise _Unresolved(
            Problem(
                Reason.SLOT_MISMATCH,
                f"Stage {default.name} is split over {ranks} ranks but has {len(slots)} gpus.",
                f"{path}.tensorParallelSize",
                stages=(default.name,),
                remedy=f"List {ranks} gpus, or set tensorParallelSize to {len(slots)}.",
            )
        )
    budget: Budget | None = default.budget if slots else None
    if override.gpu_memory is not None:
        budget = parse_budget(override.gpu_memory)
    return Stage(
        name=default.name,
        process=override.process or process,
        slots=slots,
        budget=budget,
        engine=default.engine,
        kv_cache=parse_amount(override.kv_cache) if override.kv_cache else None,
        compute_percentage=override.compute_percentage,
        start_order=override.start_order,
        startup_timeout=parse_duration(override.startup_timeout) if override.startup_timeout else timeout,
        engine_args=override.engine_args or {},
        path=path,
    )


def _suggestion(wrong: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(wrong, names, n=1)
    listed = f"Known: {', '.join(names)}."
    return f"Did you mean {close[0]}? {listed}" if close else listed
