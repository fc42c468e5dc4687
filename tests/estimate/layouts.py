"""Layouts for tests, as resolving gives them: a variant of the catalogue, with some budgets set."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from omni_operator.api.quantities import Budget, parse_budget
from omni_operator.catalogue import Card, ModelSize, TriedLayout, cards, model_sizes, pipelines
from omni_operator.planning.layout import Layout, Stage

QWEN = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
H100_SHARES = {"image_encoder": "2%", "audio_encoder": "2%", "talker_ar": "10%", "code2wav": "2%"}
"""Of sglang-omni's one-H100 layout, without the thinker's 78 %."""


def size_of(model: str) -> ModelSize:
    """The catalogue's size of a model."""
    return model_sizes()[model.lower()]


def layout(
    pipeline: str,
    variant: str,
    card: Card | str | None,
    budgets: Mapping[str, str | Budget | None] | None = None,
    slots: Mapping[str, tuple[int, ...]] | None = None,
    only: Collection[str] | None = None,
    copies: int = 1,
) -> Layout:
    """One stage a process, unless an edge must stay local; the catalogue's own slots unless `slots` has others."""
    found = pipelines()[pipeline].variants[variant]
    local = {name for edge in found.process_local_edges for name in edge}
    stages = []
    for default in found.stages:
        if only is not None and default.name not in only:
            continue
        text = (budgets or {}).get(default.name, default.budget if only is None else None)
        stages.append(
            Stage(
                default.name,
                default.process if default.name in local else default.name,
                (slots or {}).get(default.name, default.slots),
                parse_budget(text) if isinstance(text, str) else text,
                default.engine,
                copies=copies,
            )
        )
    where = cards()[card] if isinstance(card, str) else card
    return Layout(
        pipeline,
        variant,
        tuple(stages),
        where,
        process_local_edges=found.process_local_edges,
        apart=found.apart,
        together=found.together,
    )


def one_h100(thinker: str | None, card: Card | str = "h100-80gb") -> Layout:
    """Qwen3-Omni, all on one card, with the shares of sglang-omni's one-H100 layout."""
    return layout("qwen3_omni", "speech-colocated", card, H100_SHARES | {"thinker": thinker})


def of_tested(tested: TriedLayout) -> Layout:
    """A tested layout of the catalogue, with the stages that it names."""
    names = {stage.name: stage for stage in tested.stages}
    return layout(
        tested.pipeline,
        tested.variant,
        tested.card,
        {name: stage.budget for name, stage in names.items()},
        {name: stage.slots for name, stage in names.items()},
        only=names,
        copies=tested.copies,
    )


def with_budget(found: Layout, name: str, budget: str) -> Layout:
    """The layout with another budget for one stage."""
    changed = tuple(
        replace(stage, budget=parse_budget(budget)) if stage.name == name else stage for stage in found.stages
    )
    return replace(found, stages=changed)
