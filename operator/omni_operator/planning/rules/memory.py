"""Memory: what the stages of each GPU ask for together, against what may be given away of the card.

Sums are exact: percentages are fractions, amounts are bytes, and nothing is rounded before the verdict. Shares are of a
card's whole memory; each rank of a tensor-parallel stage counts on its GPU, copies multiply, and stages of one process
count each (as sglang-omni 0.1.9 `config/placement.py` counts them).
"""

from __future__ import annotations

from fractions import Fraction

from omni_operator.api.quantities import Amount, format_bytes, format_percent
from omni_operator.api.reasons import Reason
from omni_operator.planning.layout import Layout, Problem, Problems, Severity, SlotUse, Stage
from omni_operator.planning.rules.model import holds_weights
from omni_operator.planning.rules.wording import bytes_available, bytes_needed, listed, others, quantity
from omni_operator.planning.shrink import largest_fitting_budget

HEADROOM = Fraction(94, 100)
"""Above this share the rest is too small for CUDA graphs, workspaces and peaks: sglang-omni's own one-card layouts keep
6 % of the card free."""
FRACTIONS_OF_FREE_MEMORY = ("mem_fraction_static",)
"""Engine arguments that look like a share but are a fraction of what is free when the stage starts (SGLang)."""


def budgets_on_gpus_only(layout: Layout) -> Problems:
    """A stage on the CPU has no GPU memory to give."""
    for stage in layout.stages:
        if stage.budget is not None and not stage.slots:
            yield Problem(
                Reason.BUDGET_INVALID,
                f"Stage {stage.name} runs on the CPU but asks for {stage.budget} of a GPU.",
                f"{stage.path}.gpuMemory",
                stages=(stage.name,),
                remedy="Remove gpuMemory, or list the gpus it uses.",
            )


def budgets_on_shared_slots(layout: Layout) -> Problems:
    """On a shared GPU one process without a budget makes the sum meaningless, and breaks the neighbour that has one."""
    for slot, use in layout.uses.items():
        if use.clients > 1 or use.neighbours:
            for stage in use.without_budget:
                yield _missing_budget(layout, slot, use, stage)


def _missing_budget(layout: Layout, slot: int, use: SlotUse, stage: Stage) -> Problem:
    rest = max(layout.limit - use.total, Fraction(0))
    remedy = f"Set its gpuMemory; {format_percent(rest)} of the card is not given away yet."
    whom = others(use, stage) or f"{stage.copies_per_slot - 1} more of its copies"
    measured = [name for name in FRACTIONS_OF_FREE_MEMORY if name in stage.engine_args]
    if measured:
        return Problem(
            Reason.BUDGET_UNKNOWN,
            f"Stage {stage.name} shares GPU {slot} with {whom}. Its {measured[0]} is a fraction of what is free "
            "when it starts, not a share of the card, so it cannot be added up.",
            f"{stage.path}.gpuMemory",
            Severity.QUESTION,
            slot=slot,
            stages=(stage.name,),
            remedy=remedy,
        )
    return Problem(
        Reason.BUDGET_MISSING,
        f"Stage {stage.name} shares GPU {slot} with {whom} but declares no gpuMemory.",
        f"{stage.path}.gpuMemory",
        slot=slot,
        stages=(stage.name,),
        remedy=remedy,
    )


def neighbours_known(layout: Layout) -> Problems:
    """Something else on the card whose footprint nobody gave: no sum can be trusted."""
    for neighbour in layout.neighbours:
        if neighbour.footprint is None and neighbour.slot in layout.uses:
            yield Problem(
                Reason.BUDGET_UNKNOWN,
                f"GPU {neighbour.slot} is shared with {neighbour.name}, and what that takes is not known.",
                "spec.gpus",
                Severity.QUESTION,
                slot=neighbour.slot,
                remedy=f"Say how much {neighbour.name} holds, or use a GPU of your own.",
            )


def stage_within_card(layout: Layout) -> Problems:
    """An amount bigger than the card: the sum says so too, but this names the one stage."""
    if layout.card is None:
        return
    memory = layout.card.memory
    for stage in layout.stages:
        if isinstance(stage.budget, Amount) and stage.slots and stage.budget.value > memory:
            yield Problem(
                Reason.BUDGET_EXCEEDED,
                f"Stage {stage.name} asks for {stage.budget}, more than a whole {layout.card.name} "
                f"({format_bytes(memory, unlike=stage.budget.value)}).",
                f"{stage.path}.gpuMemory",
                slot=stage.slots[0],
                stages=(stage.name,),
                needed=stage.budget.value,
                available=memory,
                remedy="Split the stage over several gpus, or choose a bigger card.",
            )


def sum_within_limit(layout: Layout) -> Problems:
    """The heart: what the stages of each GPU ask for together, against what may be given away of the card."""
    for slot, use in layout.uses.items():
        if not use.exceeds(layout.limit):
            continue
        excess = use.total - layout.limit
        yield Problem(
            Reason.BUDGET_EXCEEDED,
            f"GPU {slot} is overbooked: {format_percent(use.total, unlike=layout.limit)} of "
            f"{format_percent(layout.limit)} asked for by {listed(use)}; {quantity(excess, layout)} too many.",
            "spec.stages",
            slot=slot,
            stages=tuple(use.shares),
            needed=bytes_needed(use.total, layout),
            available=bytes_available(layout.limit, layout),
            remedy=_smallest_cut(layout, use),
        )


def _smallest_cut(layout: Layout, use: SlotUse) -> str:
    """Which one stage, lowered, makes it fit: the biggest loses least of itself, but for one that needs it all."""
    for name in use.shares:
        stage = next((stage for stage in use.stages if stage.name == name), None)
        if stage is None:
            continue
        wanted = largest_fitting_budget(layout, stage)
        if wanted is None:
            break
        if not holds_weights(layout, stage, wanted):
            continue
        return f"Smallest change: lower gpuMemory of {name} from {stage.budget} to {wanted}."
    return f"No single stage can give that much; move a stage away from GPU {use.slot}."


def kv_cache_within_budget(layout: Layout) -> Problems:
    """The KV cache is part of a stage's budget."""
    for stage in layout.stages:
        if stage.kv_cache is None:
            continue
        budget = _budget_bytes(layout, stage)
        if budget is None or stage.kv_cache <= budget:
            continue
        yield Problem(
            Reason.KV_CACHE_EXCEEDED,
            f"Stage {stage.name}: a KV cache of {format_bytes(stage.kv_cache)} is more than its whole budget of "
            f"{format_bytes(budget, unlike=stage.kv_cache)}.",
            f"{stage.path}.kvCache",
            slot=stage.slots[0] if stage.slots else None,
            stages=(stage.name,),
            needed=stage.kv_cache,
            available=budget,
            remedy="Lower kvCache, or raise gpuMemory.",
        )


def kv_pools_within_card(layout: Layout) -> Problems:
    """The KV caches of a GPU, all copies, are a lower bound of what it needs even where no budget is declared."""
    if layout.card is None:
        return
    available = bytes_available(layout.limit, layout) or 0
    for slot, use in layout.uses.items():
        pools = {stage.name: stage.kv_cache * stage.copies_per_slot for stage in use.stages if stage.kv_cache}
        if not pools:
            continue
        needed = sum(pools.values())
        if needed > available:
            yield Problem(
                Reason.KV_CACHE_EXCEEDED,
                f"GPU {slot}: the KV caches of {', '.join(pools)} take {format_bytes(needed, unlike=available)} alone; "
                f"{format_bytes(available)} of the card may be given away.",
                "spec.stages",
                slot=slot,
                stages=tuple(pools),
                needed=needed,
                available=available,
                remedy="Lower kvCache, or move a stage to another GPU.",
            )


def _budget_bytes(layout: Layout, stage: Stage) -> int | None:
    if isinstance(stage.budget, Amount):
        return stage.budget.value
    return None if stage.budget is None or layout.card is None else stage.budget.bytes_of(layout.card.memory)


def card_known(layout: Layout) -> Problems:
    """Engines are given bytes, so a share needs a card, and an amount cannot be compared without one."""
    if layout.card is not None or not layout.slots:
        return
    unsummed = [stage.name for stage in layout.stages if isinstance(stage.budget, Amount)]
    fit = all(use.total <= layout.limit for use in layout.uses.values())
    if unsummed:
        known = f"the amounts of {', '.join(unsummed)} cannot be compared with a card"
    elif fit:
        known = "the shares fit, but byte budgets are unknown"
    else:
        known = "byte budgets are unknown"
    yield Problem(
        Reason.CARD_MISSING,
        f"Neither spec.gpus.card nor spec.gpus.memory is set: {known}.",
        "spec.gpus",
        Severity.QUESTION,
        remedy="Set spec.gpus.card, such as h100-80gb, or spec.gpus.memory, such as 81559Mi.",
    )


def headroom(layout: Layout) -> Problems:
    """Exactly full is accepted, but CUDA graphs, workspaces and peaks have no room."""
    for slot, use in layout.uses.items():
        if use.exceeds(HEADROOM) and not use.exceeds(layout.limit):
            yield Problem(
                Reason.NO_HEADROOM,
                f"GPU {slot} keeps only {format_percent(1 - use.total, unlike=1 - HEADROOM)} of the card free.",
                "spec.stages",
                Severity.WARNING,
                slot=slot,
                stages=tuple(use.shares),
                remedy=f"{format_percent(1 - HEADROOM)} or more is usual, for CUDA graphs and workspaces.",
            )
