"""The budget rules: does a layout fit its GPUs, and if not, why, by how much, and what would.

Each rule is a small function from a layout to problems; `RULES` is the one chain that the CLI, the webhook and the
controller all run. Sums are exact: percentages are fractions, amounts are bytes, and nothing is rounded before the
verdict. Shares are of a card's whole memory; each rank of a tensor-parallel stage counts on its GPU, copies multiply,
and stages of one process count each (as sglang-omni 0.1.9 `config/placement.py` counts them).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from omni_operator.api.names import MAX_POD_NAME, stage_pod_name
from omni_operator.api.quantities import Amount, format_bytes, format_percent
from omni_operator.api.reasons import Reason
from omni_operator.api.v1alpha1 import MAX_SLOTS, SharingBackend, SharingStrategy
from omni_operator.planning.layout import Layout, Problem, Problems, Severity, SlotUse, Stage

Rule = Callable[[Layout], Problems]

HEADROOM = Fraction(94, 100)
"""Above this share the rest is too small for CUDA graphs, workspaces and peaks: sglang-omni's own one-card layouts keep
6 % of the card free."""
MPS_CLIENTS = 48
"""Client contexts that one GPU takes under MPS (NVIDIA MPS documentation, Volta and later)."""
NUMBER_OF_RULES_A_MESSAGE_NAMES = 6


def check(layout: Layout) -> tuple[Problem, ...]:
    """All problems of a layout, errors first, in the order of the rules."""
    found = [problem for rule in RULES for problem in rule(layout)]
    return tuple(sorted(found, key=lambda problem: problem.severity is Severity.WARNING))


def slots_without_gaps(layout: Layout) -> Problems:
    """Slots are counted from 0: a skipped one would hold a GPU that nothing uses."""
    slots = layout.slots
    for slot in range(max(slots, default=-1)):
        if slot not in slots:
            users = tuple(stage.name for stage in layout.stages if max(stage.slots, default=-1) > slot)
            yield Problem(
                Reason.SLOT_SKIPPED,
                f"GPU {slot} is used by no stage, but GPU {max(slots)} is ({', '.join(users)}).",
                "spec.stages",
                slot=slot,
                stages=users,
                remedy="Slots are logical and counted from 0 without gaps; renumber them.",
            )


def slots_within_claim(layout: Layout) -> Problems:
    """A ResourceClaim holds at most 32 results."""
    if len(layout.slots) > MAX_SLOTS:
        yield Problem(
            Reason.TOO_MANY_SLOTS,
            f"The layout uses {len(layout.slots)} GPUs; one replica can have {MAX_SLOTS}.",
            "spec.stages",
        )


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
    """On a shared GPU one stage without a budget makes the sum meaningless, and breaks the neighbour that has one."""
    for slot in layout.slots:
        use = SlotUse(layout, slot)
        if len(use.stages) < 2:
            continue
        for stage in use.without_budget:
            rest = max(layout.limit - use.total, Fraction(0))
            yield Problem(
                Reason.BUDGET_MISSING,
                f"Stage {stage.name} shares GPU {slot} with {_others(use, stage)} but declares no gpuMemory.",
                f"{stage.path}.gpuMemory",
                slot=slot,
                stages=(stage.name,),
                remedy=f"Set its gpuMemory; {format_percent(rest)} of the card is not given away yet.",
            )


def card_known_for_amounts(layout: Layout) -> Problems:
    """Engines are given bytes, so a share needs a card, and an amount cannot be compared without one."""
    if layout.card is None and layout.slots:
        yield Problem(
            Reason.CARD_MISSING,
            "Neither spec.gpus.card nor spec.gpus.memory is set, so shares cannot become bytes.",
            "spec.gpus",
            Severity.QUESTION,
            remedy="Set spec.gpus.card, such as h100-80gb, or spec.gpus.memory, such as 81559Mi.",
        )


def sum_within_limit(layout: Layout) -> Problems:
    """The heart: what the stages of each GPU ask for together, against what may be given away of the card."""
    for slot in layout.slots:
        use = SlotUse(layout, slot)
        excess = use.total - layout.limit
        if excess <= 0:
            continue
        yield Problem(
            Reason.BUDGET_EXCEEDED,
            f"GPU {slot} is overbooked: {format_percent(use.total)} of {format_percent(layout.limit)} asked for by "
            f"{_listed(use)}; {_quantity(excess, layout)} too many.",
            "spec.stages",
            slot=slot,
            stages=tuple(use.shares),
            needed=_bytes(use.total, layout),
            available=_bytes(layout.limit, layout),
            remedy=_smallest_cut(layout, use, excess),
        )


def stage_within_card(layout: Layout) -> Problems:
    """An amount bigger than the card: the sum says so too, but this names the one stage."""
    if layout.card is None:
        return
    for stage in layout.stages:
        if isinstance(stage.budget, Amount) and stage.slots and stage.budget.value > layout.card.memory:
            yield Problem(
                Reason.BUDGET_EXCEEDED,
                f"Stage {stage.name} asks for {stage.budget}, more than a whole {layout.card.name} "
                f"({format_bytes(layout.card.memory)}).",
                f"{stage.path}.gpuMemory",
                slot=stage.slots[0],
                stages=(stage.name,),
                needed=stage.budget.value,
                available=layout.card.memory,
                remedy="Split the stage over several gpus, or choose a bigger card.",
            )


def kv_cache_within_budget(layout: Layout) -> Problems:
    """The KV cache is part of a stage's budget."""
    for stage in layout.stages:
        if stage.kv_cache is None or stage.budget is None or layout.card is None:
            continue
        budget = stage.budget.bytes_of(layout.card.memory)
        if stage.kv_cache > budget:
            yield Problem(
                Reason.KV_CACHE_EXCEEDED,
                f"Stage {stage.name}: a KV cache of {format_bytes(stage.kv_cache)} is more than its whole budget of "
                f"{format_bytes(budget)}.",
                f"{stage.path}.kvCache",
                stages=(stage.name,),
                needed=stage.kv_cache,
                available=budget,
                remedy="Lower kvCache, or raise gpuMemory.",
            )


def stages_apart(layout: Layout) -> Problems:
    """Pairs that the variant refuses on one GPU, as Qwen3-Omni's `speech` does with its thinker and talker."""
    by_name = {stage.name: stage for stage in layout.stages}
    for first, second in layout.apart:
        if first not in by_name or second not in by_name:
            continue
        for slot in sorted(set(by_name[first].slots) & set(by_name[second].slots)):
            yield Problem(
                Reason.LAYOUT_UNSUPPORTED,
                f"{layout.pipeline}/{layout.variant} refuses {first} and {second} on one GPU; both are on GPU {slot}.",
                f"{by_name[second].path}.gpus",
                slot=slot,
                stages=(first, second),
                remedy=f"Use spec.model.variant speech-colocated, or move {second} to another GPU.",
            )


def local_edges_in_one_process(layout: Layout) -> Problems:
    """Some neighbours hand over objects that cannot leave a process."""
    by_name = {stage.name: stage for stage in layout.stages}
    for first, second in layout.process_local_edges:
        if by_name[first].process != by_name[second].process:
            yield Problem(
                Reason.PROCESS_SPLIT,
                f"{layout.pipeline}: {first} and {second} must run in one process.",
                f"{by_name[second].path}.process",
                stages=(first, second),
                remedy=f"Give both the same process, such as {by_name[second].process}.",
            )


def process_on_same_slots(layout: Layout) -> Problems:
    """Stages of one process see the same GPUs, so those that use a GPU must use the same ones."""
    for name, stages in layout.processes().items():
        placed = [stage for stage in stages if stage.slots]
        if len({stage.slots for stage in placed}) > 1:
            yield Problem(
                Reason.PROCESS_SPLIT,
                f"Process {name} is spread over different gpus: "
                + ", ".join(f"{stage.name} on {list(stage.slots)}" for stage in placed)
                + ".",
                f"{placed[1].path}.gpus",
                stages=tuple(stage.name for stage in placed),
                remedy="Give its stages the same gpus, or processes of their own.",
            )


def sharing_allows_layout(layout: Layout) -> Problems:
    """Without sharing, a GPU takes one process."""
    if layout.strategy is SharingStrategy.NONE:
        for slot in layout.shared_slots():
            processes = sorted({stage.process for stage in layout.on_slot(slot)})
            yield Problem(
                Reason.SHARING_UNSUPPORTED,
                f"Sharing is None, but GPU {slot} has {len(processes)} processes: {', '.join(processes)}.",
                "spec.gpus.sharing.strategy",
                slot=slot,
                stages=tuple(stage.name for stage in layout.on_slot(slot)),
                remedy="Use strategy MPS or TimeSlicing, one process for these stages, or another GPU.",
            )


def backend_supported(layout: Layout) -> Problems:
    """The device plugin cannot say that two pods share one GPU."""
    if layout.backend is SharingBackend.DEVICE_PLUGIN and layout.shared_slots():
        yield Problem(
            Reason.SHARING_UNSUPPORTED,
            "With the device plugin no two pods are sure to share one GPU, and this layout shares GPU "
            f"{', '.join(map(str, layout.shared_slots()))}.",
            "spec.gpus.sharing.backend",
            remedy="Use backend DRA, or give the stages of each GPU one process.",
        )


def mps_clients(layout: Layout) -> Problems:
    """MPS takes 48 client contexts a GPU."""
    if layout.strategy is not SharingStrategy.MPS:
        return
    for slot in layout.slots:
        clients = sum(stage.copies for stage in layout.on_slot(slot))
        if clients > MPS_CLIENTS:
            yield Problem(
                Reason.TOO_MANY_CLIENTS,
                f"GPU {slot} would have {clients} MPS clients; a GPU takes {MPS_CLIENTS}.",
                "spec.stages",
                slot=slot,
                remedy="Move stages to another GPU, or put several into one process.",
            )


def compute_percentage_needs_mps(layout: Layout) -> Problems:
    """Only MPS can cap a process's threads."""
    for stage in layout.stages:
        if stage.compute_percentage is not None and layout.strategy is not SharingStrategy.MPS:
            yield Problem(
                Reason.SHARING_UNSUPPORTED,
                f"Stage {stage.name} has computePercentage, which only MPS enforces, and the strategy "
                f"is {layout.strategy}.",
                f"{stage.path}.computePercentage",
                stages=(stage.name,),
                remedy="Remove computePercentage, or use strategy MPS.",
            )


def pod_names_distinct(layout: Layout) -> Problems:
    """`a_b` and `a-b` would be the same pod."""
    counted = Counter(stage_pod_name("", 0, process) for process in layout.processes())
    for process in layout.processes():
        if counted[stage_pod_name("", 0, process)] > 1:
            yield Problem(
                Reason.NAMES_COLLIDE,
                f"Process {process!r} has the same pod name as another one, since _ becomes - there.",
                "spec.stages",
                remedy="Rename one of the processes.",
            )


def headroom(layout: Layout) -> Problems:
    """Exactly full is accepted, but CUDA graphs, workspaces and peaks have no room."""
    for slot in layout.slots:
        use = SlotUse(layout, slot)
        if HEADROOM < use.total <= layout.limit:
            yield Problem(
                Reason.NO_HEADROOM,
                f"GPU {slot} keeps only {format_percent(1 - use.total)} of the card free.",
                "spec.stages",
                Severity.WARNING,
                slot=slot,
                stages=tuple(use.shares),
                remedy=f"{format_percent(1 - HEADROOM)} or more is usual, for CUDA graphs and workspaces.",
            )


RULES: tuple[Rule, ...] = (
    slots_without_gaps,
    slots_within_claim,
    budgets_on_gpus_only,
    budgets_on_shared_slots,
    stage_within_card,
    sum_within_limit,
    kv_cache_within_budget,
    card_known_for_amounts,
    stages_apart,
    local_edges_in_one_process,
    process_on_same_slots,
    sharing_allows_layout,
    backend_supported,
    mps_clients,
    compute_percentage_needs_mps,
    pod_names_distinct,
    headroom,
)


def check_names(model: str, layout: Layout) -> Problems:
    """A pod's name is its hostname, at most 63 characters."""
    for process in layout.processes():
        pod = stage_pod_name(model, 99, process)
        if len(pod) > MAX_POD_NAME:
            yield Problem(
                Reason.NAME_TOO_LONG,
                f"Pod {pod} would have {len(pod)} characters; {MAX_POD_NAME} are allowed.",
                "metadata.name",
                remedy=f"Shorten the OmniModel's name by {len(pod) - MAX_POD_NAME}.",
            )


def _listed(use: SlotUse) -> str:
    shares = [f"{name} {format_percent(share)}" for name, share in use.shares.items()]
    hidden = len(shares) - NUMBER_OF_RULES_A_MESSAGE_NAMES
    if hidden > 1:
        shares = [*shares[:NUMBER_OF_RULES_A_MESSAGE_NAMES], f"{hidden} more"]
    return ", ".join(shares)


def _others(use: SlotUse, stage: Stage) -> str:
    return ", ".join(other.name for other in use.stages if other is not stage)


def _bytes(share: Fraction, layout: Layout) -> int | None:
    return None if layout.card is None else int(share * layout.card.memory)


def _quantity(share: Fraction, layout: Layout) -> str:
    amount = _bytes(share, layout)
    return format_percent(share) + (f" (about {format_bytes(amount)})" if amount else "")


def _smallest_cut(layout: Layout, use: SlotUse, excess: Fraction) -> str:
    """Which one stage, lowered, makes it fit: the biggest loses least of itself."""
    name, share = next(iter(use.shares.items()))
    if share <= excess:
        return f"No single stage can give that much; move a stage away from GPU {use.slot}."
    stage = next(stage for stage in use.stages if stage.name == name)
    left = (share - excess) / stage.copies
    if isinstance(stage.budget, Amount) and layout.card is not None:
        wanted = format_bytes(int(left * layout.card.memory) // 2**20 * 2**20)
    else:
        wanted = format_percent(Fraction(int(left * 10000), 10000))
    return f"Smallest change: lower gpuMemory of {name} from {stage.budget} to {wanted}."
