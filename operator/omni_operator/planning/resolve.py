"""Catalogue and overrides → one layout. What cannot be resolved is a problem with the path of the field to change.

All that is wrong is said at once, as far as one thing can be judged without another. `spec` is only read: nothing that
is resolved here is ever written back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from omni_operator.api.enums import DeviceKind, Placement, SharingBackend, SharingStrategy, TimeSliceInterval
from omni_operator.api.quantities import GIB, MIB, Budget, QuantityError, parse_amount, parse_budget, parse_percent
from omni_operator.api.reasons import Reason
from omni_operator.catalogue import (
    Card,
    ModelSize,
    Pipeline,
    StageDefault,
    Variant,
    cards,
    cards_without_memory,
    known_models,
    model_sizes,
    pipelines,
)
from omni_operator.planning.cluster import DRIVER, Surroundings, Wish, on_cluster
from omni_operator.planning.layout import DEFAULT_STARTUP_TIMEOUT, Layout, Problem, Severity, Stage
from omni_operator.planning.rules.wording import closest
from omni_operator.planning.templates import read_templates

if TYPE_CHECKING:
    from omni_operator.api.v1alpha1 import GpusSpec, ModelSource, OmniModelSpec, StageSpec

MIG_DEVICE_CLASS = "mig.nvidia.com"
"""Device class of NVIDIA's DRA driver for MIG slices."""

ANYWHERE = Surroundings()
"""A place that has whatever is asked for."""

T = TypeVar("T")


@dataclass(frozen=True)
class Resolution:
    """A layout, or why there is none. Warnings may come with a layout."""

    layout: Layout | None
    problems: tuple[Problem, ...] = ()


class _Unresolved(Exception):
    """Ends one part of resolving; carries its problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _Problems:
    """Collects what is wrong, so that one mistake does not hide the next."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.fatal = False

    def attempt(self, part: Callable[..., T], *arguments: Any, field: str = "spec") -> T | None:
        """The part's value, or None after noting why there is none."""
        try:
            return part(*arguments)
        except _Unresolved as unresolved:
            self.found.append(unresolved.problem)
        except QuantityError as error:
            self.found.append(Problem(Reason.INVALID_SPEC, f"{field}: {error}.", field))
        self.fatal = True
        return None


def resolve(spec: OmniModelSpec, surroundings: Surroundings = ANYWHERE) -> Resolution:
    """The layout of one pipeline replica of `spec`."""
    problems = _Problems()
    gpus = spec.gpus
    card = problems.attempt(_card_of, gpus, field="spec.gpus.memory") if gpus else None
    if gpus is not None and card is not None:
        problems.found += _suspect_size(gpus, card)
    limit = Fraction(1)
    if gpus is not None and gpus.max_share:
        limit = problems.attempt(parse_percent, gpus.max_share, field="spec.gpus.maxShare") or limit
    templates, wrong = read_templates(spec)
    problems.found += wrong
    chosen = problems.attempt(_pipeline_of, spec.model)
    stages = _stages_of(spec, *chosen, problems) if chosen else ()
    if chosen is None or problems.fatal:
        return Resolution(None, tuple(problems.found))
    pipeline, variant = chosen
    sharing = gpus.sharing if gpus is not None else None
    layout = Layout(
        pipeline=pipeline.name,
        variant=variant.name,
        stages=stages,
        card=card,
        limit=limit,
        strategy=SharingStrategy((sharing and sharing.strategy) or "Auto"),
        multi_user=bool(sharing and sharing.multi_user),
        interval=TimeSliceInterval(sharing.interval) if sharing and sharing.interval else None,
        placement=Placement((gpus and gpus.placement) or "SameNode"),
        process_local_edges=variant.process_local_edges,
        apart=variant.apart,
        together=variant.together,
        size=_size_of(spec, pipeline),
        templates=templates,
    )
    layout, found = on_cluster(_with_concrete_strategy(layout), _wish(spec), surroundings)
    return Resolution(layout, (*problems.found, *found))


def _wish(spec: OmniModelSpec) -> Wish:
    gpus = spec.gpus
    if gpus is None:
        return Wish()
    only = {"spec.gpus.selector": gpus.selector, "spec.gpus.deviceClassName": gpus.device_class_name}
    return Wish(
        backend=SharingBackend((gpus.sharing and gpus.sharing.backend) or "Auto"),
        device_class=gpus.device_class_name or DRIVER,
        resource=gpus.resource_name,
        node_labels=(spec.scheduling and spec.scheduling.node_selector) or {},
        dra_only=tuple(name for name, value in only.items() if value is not None),
    )


def _size_of(spec: OmniModelSpec, pipeline: Pipeline) -> ModelSize | None:
    """Where the model's weights are loaded onto GPUs, and by the pipeline that its size is known for."""
    development = spec.development
    if development is not None and (development.device == DeviceKind.CPU or development.hold is not None):
        return None
    known = known_models().get(spec.model.id.lower())
    return model_sizes().get(spec.model.id.lower()) if known is not None and known.pipeline == pipeline.name else None


def parse_duration(text: str) -> int:
    """Seconds of `1h30m`, `45m`, `90s`. Raises QuantityError."""
    parts = re.fullmatch(r"(?:(\d{1,4})h)?(?:(\d{1,5})m)?(?:(\d{1,6})s)?", text)
    if parts is None or not text:
        raise QuantityError(f"{text!r} is not a duration such as 45m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + seconds


def _with_concrete_strategy(layout: Layout) -> Layout:
    """Auto is resolved as sglang-omni's own `mps: auto` does (0.1.9, `mps/runtime.py`): a GPU has MPS from the second
    process on that uses no other GPU; a tensor-parallel one does not count. What is shared otherwise takes turns."""
    if layout.strategy is not SharingStrategy.AUTO:
        return layout
    slots_of = {name: {slot for stage in stages for slot in stage.slots} for name, stages in layout.processes().items()}
    for use in layout.uses.values():
        if sum(len(slots_of[process]) == 1 for process in use.processes) > 1:
            return replace(layout, strategy=SharingStrategy.MPS)
    return replace(layout, strategy=SharingStrategy.TIME_SLICING if layout.shared_slots() else SharingStrategy.NONE)


def _pipeline_of(model: ModelSource) -> tuple[Pipeline, Variant]:
    known = known_models().get(model.id.lower())
    name = model.pipeline or (known.pipeline if known else None)
    if name is None:
        raise _Unresolved(
            Problem(
                Reason.UNKNOWN_PIPELINE,
                f"The catalogue does not know which pipeline serves {model.id!r}.",
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
    wanted = model.variant or (known.variant if known and known.pipeline == name else None)
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


def _card_of(gpus: GpusSpec) -> Card | None:
    """The card that shares are planned on; None where neither its name nor its memory is given."""
    if gpus.memory is not None and gpus.card is not None:
        raise _Unresolved(
            Problem(
                Reason.INVALID_SPEC,
                "spec.gpus has both card and memory, which say the same thing twice.",
                "spec.gpus",
                remedy="Keep one of them.",
            )
        )
    if gpus.memory is not None:
        return Card(gpus.memory, parse_amount(gpus.memory))
    if gpus.card is None:
        return None
    card = cards().get(gpus.card)
    if card is None and gpus.card in cards_without_memory():
        raise _Unresolved(
            Problem(
                Reason.CARD_MISSING,
                f"A {cards_without_memory()[gpus.card]} ({gpus.card}) reports no memory size, so shares of it cannot "
                "become bytes.",
                "spec.gpus.card",
                Severity.QUESTION,
                remedy="Set spec.gpus.memory instead, to what its GPU may use, such as 110Gi.",
            )
        )
    if card is None:
        raise _Unresolved(
            Problem(
                Reason.UNKNOWN_CARD,
                f"The catalogue has no card {gpus.card!r}.",
                "spec.gpus.card",
                remedy=_suggestion(gpus.card, cards()) + " Or give its size as spec.gpus.memory.",
            )
        )
    return card


def _suspect_size(gpus: GpusSpec, card: Card) -> Iterable[Problem]:
    if gpus.memory is not None:
        yield from _marketing_size(gpus.memory, card.memory)
    elif _asks_for_slices(gpus) and "mig" not in card.name:
        yield Problem(
            Reason.CARD_SIZE_SUSPECT,
            f"The GPUs asked for are MIG slices, but shares would be planned on a whole {card.product or card.name}.",
            "spec.gpus.card",
            remedy="Give the memory of one slice as spec.gpus.memory, as nvidia-smi reports it, such as 20096Mi.",
        )


def _asks_for_slices(gpus: GpusSpec) -> bool:
    """A MIG slice has the product name of its card and only a part of its memory."""
    if gpus.device_class_name == MIG_DEVICE_CLASS:
        return True
    return re.search(r"\bmig\b|[0-9]g\.[0-9]+gb", gpus.selector or "", re.IGNORECASE) is not None


def _marketing_size(text: str, memory: int) -> Iterable[Problem]:
    """A card sold as 80 GB has 79.6 GiB: `memory: 80Gi` would match none of them."""
    sold = [card for card in cards().values() if card.sold_as and memory in (card.sold_as * GIB, card.sold_as * 10**9)]
    short = [card for card in sold if card.memory < memory]
    if short:
        card = short[0]
        yield Problem(
            Reason.CARD_SIZE_SUSPECT,
            f"No {card.product} has {text}: it reports {card.memory // MIB}Mi.",
            "spec.gpus.memory",
            Severity.WARNING,
            remedy=f"Write memory: {card.memory // MIB}Mi, or card: {card.name}.",
        )


def _stages_of(spec: OmniModelSpec, pipeline: Pipeline, variant: Variant, problems: _Problems) -> tuple[Stage, ...]:
    overrides: dict[str, tuple[str, StageSpec]] = {}
    names = [stage.name for stage in variant.stages]
    for i, override in enumerate(spec.stages or ()):
        problems.attempt(
            _known_once, override.name, f"spec.stages[{i}]", overrides, names, f"{pipeline.name}/{variant.name}"
        )
        overrides[override.name] = (f"spec.stages[{i}]", override)
    timeout = DEFAULT_STARTUP_TIMEOUT
    if spec.startup_timeout:
        timeout = problems.attempt(parse_duration, spec.startup_timeout, field="spec.startupTimeout") or timeout
    local = {name for edge in variant.process_local_edges for name in edge}
    stages = []
    for default in variant.stages:
        process = default.process if default.name in local else default.name
        stages.append(_stage(default, overrides.get(default.name), process, timeout, problems))
    return tuple(stages)


def _known_once(name: str, path: str, seen: Iterable[str], names: Sequence[str], where: str) -> None:
    if name not in names:
        raise _Unresolved(
            Problem(
                Reason.UNKNOWN_STAGE,
                f"{where} has no stage {name!r}.",
                f"{path}.name",
                remedy=_suggestion(name, names),
            )
        )
    if name in seen:
        raise _Unresolved(
            Problem(
                Reason.INVALID_SPEC,
                f"Stage {name} is listed twice.",
                f"{path}.name",
                stages=(name,),
                remedy="Keep one of the two.",
            )
        )


def _stage(
    default: StageDefault, found: tuple[str, StageSpec] | None, process: str, timeout: int, problems: _Problems
) -> Stage:
    if found is None:
        path = f"spec.stages[name={default.name}]"
        return Stage(
            default.name, process, default.slots, default.budget, default.engine, startup_timeout=timeout, path=path
        )
    path, override = found

    def read(parse: Callable[[Any], T], value: Any, field: str) -> T | None:
        return None if value is None else problems.attempt(parse, value, field=f"{path}.{field}")

    slots = default.slots if override.gpus is None else tuple(override.gpus)
    budget: Budget | None = default.budget if slots else None
    if override.gpu_memory is not None:
        budget = read(parse_budget, override.gpu_memory, "gpuMemory")
    return Stage(
        name=default.name,
        process=override.process or process,
        slots=slots,
        budget=budget,
        engine=default.engine,
        kv_cache=read(parse_amount, override.kv_cache, "kvCache"),
        ranks=override.tensor_parallel_size,
        compute_percentage=override.compute_percentage,
        start_order=override.start_order,
        startup_timeout=read(parse_duration, override.startup_timeout, "startupTimeout") or timeout,
        engine_args=override.engine_args or {},
        path=path,
    )


def _suggestion(wrong: str, known: Iterable[str]) -> str:
    names = list(known)
    meant = closest(wrong, names)
    listed = f"Known: {', '.join(names)}."
    return f"Did you mean {meant}? {listed}" if meant else listed
