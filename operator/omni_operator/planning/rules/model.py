"""What the model itself needs, where its size is known, against what its stages declare.

Refused is only what is certain: weights are counted from the checkpoint and every byte of them must be there. All else
is an estimate, and said in one warning for all stages (docs/design/2026-11-30-estimates-at-admission.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from omni_operator.api.quantities import MIB, Amount, Budget, Share, format_bytes, format_percent
from omni_operator.api.reasons import Reason
from omni_operator.catalogue import Card
from omni_operator.planning.estimate_need import PartKind, StageNeed, Workload, smallest_budget, stage_need
from omni_operator.planning.layout import Layout, Problem, Problems, Severity, Stage

CHANGES_WEIGHTS = frozenset({
    "cpu_offload_gb", "dtype", "json_model_override_args", "load_format", "model_loader_extra_config", "offload_mode",
    "quantization", "torchao_config",
})  # fmt: skip
"""Engine arguments with which a stage's weights are not the checkpoint's: nothing is known of such a stage."""
_USUAL = Workload()


def weights_within_budget(layout: Layout) -> Problems:
    """A budget below the weights, or a card below them where nothing is declared. A lower budget makes it worse."""
    for stage, need, card in _known(layout):
        budget = card.memory if stage.budget is None else stage.budget.bytes_of(card.memory)
        if budget < need.weights:
            yield _cannot_work(stage, need, card, budget, 0)
        elif stage.kv_cache is not None and stage.kv_cache <= budget < need.weights + stage.kv_cache:
            yield _cannot_work(stage, need, card, budget, stage.kv_cache)


def model_has_room(layout: Layout) -> Problems:
    """One warning for all stages that hold their weights, but by the estimate not what they work with."""
    short = [
        (stage, need, card)
        for stage, need, card in _known(layout)
        if stage.budget is not None and need.weights <= stage.budget.bytes_of(card.memory) < need.capped
    ]
    if short:
        yield Problem(
            Reason.BUDGET_TIGHT,
            "By the estimate too little is left beside the weights: "
            + ", ".join(_shortage(stage, need, card) for stage, need, card in short)
            + ".",
            "spec.stages",
            Severity.WARNING,
            slot=short[0][0].slots[0],
            stages=tuple(stage.name for stage, _, _ in short),
            remedy="`kubectl omni estimate` shows where it goes.",
        )


def holds_weights(layout: Layout, stage: Stage, budget: Budget) -> bool:
    """Whether a budget holds the stage's weights and declared KV cache, as far as anybody knows."""
    return all(
        budget.bytes_of(card.memory) >= need.weights + (stage.kv_cache or 0)
        for found, need, card in _known(layout)
        if found.name == stage.name
    )


def with_weights(layout: Layout) -> Layout:
    """The layout with the smallest budget that each stage can work with where the declared one cannot hold its weights
    (and its declared KV cache): a share, or an amount where one was declared or no share is enough."""
    raised = {}
    for stage, need, card in _known(layout):
        if stage.budget is None or holds_weights(layout, stage, stage.budget):
            continue
        share = smallest_budget(need, card)
        amount = isinstance(stage.budget, Amount) or share > 1
        raised[stage.name] = replace(stage, budget=Amount(-(-need.capped // MIB) * MIB) if amount else Share(share))
    return replace(layout, stages=tuple(raised.get(stage.name, stage) for stage in layout.stages))


def _known(layout: Layout) -> Iterator[tuple[Stage, StageNeed, Card]]:
    if layout.card is None or layout.size is None:
        return
    for stage in layout.stages:
        if not CHANGES_WEIGHTS & stage.engine_args.keys():
            need = stage_need(layout, stage, layout.size, _USUAL)
            if need is not None:
                yield stage, need, layout.card


def _cannot_work(stage: Stage, need: StageNeed, card: Card, budget: int, kv_cache: int) -> Problem:
    needed = need.weights + kv_cache
    each = f" on each of its {need.ranks} GPUs" if need.ranks > 1 else ""
    what = f"weights of {format_bytes(need.weights, unlike=budget)}{each}"
    what += f" and a KV cache of {format_bytes(kv_cache)}" if kv_cache else ""
    whose = f"gpuMemory {stage.budget}" if stage.budget is not None else f"a whole {card.name}"
    size = "" if isinstance(stage.budget, Amount) else f" ({format_bytes(budget)})"
    return Problem(
        Reason.KV_CACHE_EXCEEDED if kv_cache else Reason.BUDGET_EXCEEDED,
        f"Stage {stage.name}: {whose}{size} cannot hold its {what}.",
        f"{stage.path}.{'kvCache' if kv_cache else 'gpuMemory'}",
        slot=stage.slots[0],
        stages=(stage.name,),
        needed=needed,
        available=budget,
        remedy=raised(stage, need, card),
    )


def raised(stage: Stage, need: StageNeed, card: Card) -> str:
    """The way out is up: a lower budget makes it worse."""
    share = smallest_budget(need, card)
    if share > 1:
        return f"No share of a {card.name} is enough; split {stage.name} over more gpus, or choose a bigger card."
    if stage.budget is None:
        return f"Split {stage.name} over more gpus, or choose a bigger card."
    wanted = f"{-(-need.capped // MIB)}Mi" if isinstance(stage.budget, Amount) else format_percent(share)
    return f"Raise gpuMemory of {stage.name} from {stage.budget} to {wanted}; lowering it makes it worse."


def _shortage(stage: Stage, need: StageNeed, card: Card) -> str:
    """`thinker 78% (8980 of 32768 tokens; all at 80.8%)`."""
    assert stage.budget is not None
    share = smallest_budget(need, card)
    enough = f"{-(-need.capped // MIB)}Mi" if isinstance(stage.budget, Amount) else format_percent(share)
    if share > 1:
        enough = "more than the card"
    if not need.token:
        return f"{stage.name} {stage.budget} ({enough} is enough)"
    room = max(0, int((stage.budget.bytes_of(card.memory) - need.fixed) / need.token))
    tokens = -(-need.of(PartKind.KV_CACHE) // need.token)
    return f"{stage.name} {stage.budget} ({room} of {tokens} tokens of KV cache; all at {enough})"
