"""Slots and processes: where stages may be, and which must or must not be together."""

from __future__ import annotations

from collections import Counter

from omni_operator.api.names import stage_pod_name
from omni_operator.api.reasons import Reason
from omni_operator.planning.layout import Layout, Problem, Problems, Stage

MAX_CLAIM_RESULTS = 32
"""Devices of one ResourceClaim (Kubernetes `AllocationResultsMaxSize`)."""


def slots_without_gaps(layout: Layout) -> Problems:
    """Slots are counted from 0: a skipped one would hold a GPU that nothing uses."""
    slots = layout.slots
    if not slots or slots[-1] == len(slots) - 1:
        return
    for slot in range(slots[-1]):
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
    if len(layout.slots) > MAX_CLAIM_RESULTS:
        yield Problem(
            Reason.TOO_MANY_SLOTS,
            f"The layout uses {len(layout.slots)} GPUs; one replica can have {MAX_CLAIM_RESULTS}.",
            "spec.stages",
            remedy="Use fewer slots, and more replicas.",
        )


def slots_of_a_stage_distinct(layout: Layout) -> Problems:
    """Two ranks of a stage on one GPU would split nothing."""
    for stage in layout.stages:
        if len(stage.slots) > len(set(stage.slots)):
            repeated = [slot for slot, times in Counter(stage.slots).items() if times > 1]
            yield Problem(
                Reason.DEVICE_COUNT_MISMATCH,
                f"Stage {stage.name} lists GPU {repeated[0]} more than once.",
                f"{stage.path}.gpus",
                slot=repeated[0],
                stages=(stage.name,),
                remedy="List each GPU once; each tensor-parallel rank has a GPU of its own.",
            )


def one_slot_per_rank(layout: Layout) -> Problems:
    """A stage has as many slots as ranks, or as ranks times copies."""
    for stage in layout.stages:
        if stage.ranks is None or len(stage.slots) in {stage.ranks, stage.ranks * stage.copies}:
            continue
        if stage.ranks == 1 and not stage.slots:
            continue
        per_copy = f", or {stage.ranks * stage.copies} for its {stage.copies} copies" if stage.copies > 1 else ""
        yield Problem(
            Reason.DEVICE_COUNT_MISMATCH,
            f"Stage {stage.name} is split over {stage.ranks} ranks but has {len(stage.slots)} gpus.",
            f"{stage.path}.tensorParallelSize",
            stages=(stage.name,),
            remedy=f"List {stage.ranks} gpus{per_copy}, or set tensorParallelSize to {max(1, len(stage.slots))}.",
        )


def stages_apart(layout: Layout) -> Problems:
    """Pairs that the variant refuses on one GPU, as Qwen3-Omni's `speech` does with its thinker and talker.

    Upstream lets a split stage pass (sglang-omni 0.1.9, `models/qwen3_omni/placement.py`): so do we.
    """
    by_name = {stage.name: stage for stage in layout.stages}
    for first, second in layout.apart:
        if first not in by_name or second not in by_name:
            continue
        if len(by_name[first].slots) > 1 or len(by_name[second].slots) > 1:
            continue
        for slot in sorted(set(by_name[first].slots) & set(by_name[second].slots)):
            yield Problem(
                Reason.LAYOUT_UNSUPPORTED,
                f"{layout.pipeline}/{layout.variant} refuses {first} and {second} on one GPU; both are on GPU {slot}.",
                f"{by_name[second].path}.gpus",
                slot=slot,
                stages=(first, second),
                remedy=f"Use a variant made for one GPU (such as speech-colocated), or move {second} to another GPU.",
            )


def stages_together(layout: Layout) -> Problems:
    """Stages that the variant wants on one GPU, as Qwen3-Omni's `speech-colocated` does with all that use one."""
    concerned = [stage for stage in layout.stages if stage.name in layout.together]
    if not concerned:
        return
    votes = Counter(slot for stage in concerned for slot in stage.slots)
    home = min(votes, key=lambda slot: (-votes[slot], slot), default=0)
    strays = [stage for stage in concerned if stage.slots != (home,)]
    if not strays:
        return
    slot = next((slot for stage in strays for slot in stage.slots if slot != home), home)
    yield Problem(
        Reason.LAYOUT_UNSUPPORTED,
        f"{layout.pipeline}/{layout.variant} keeps all its stages on one GPU; here "
        + ", ".join(f"{stage.name} is on {_where(stage)}" for stage in strays)
        + f", and the others are on GPU {home}.",
        f"{strays[0].path}.gpus",
        slot=slot,
        stages=tuple(stage.name for stage in strays),
        remedy=f"Put {' and '.join(stage.name for stage in strays)} on GPU {home} alone, or use a variant for several "
        "GPUs (such as speech).",
    )


def _where(stage: Stage) -> str:
    if not stage.slots:
        return "the CPU"
    return f"GPU{'s' if len(stage.slots) > 1 else ''} {', '.join(map(str, stage.slots))}"


def local_edges_in_one_process(layout: Layout) -> Problems:
    """Some neighbours hand over objects that cannot leave a process."""
    by_name = {stage.name: stage for stage in layout.stages}
    for first, second in layout.process_local_edges:
        if first not in by_name or second not in by_name or by_name[first].process == by_name[second].process:
            continue
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
        if len(stages) == 1:
            continue
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


def split_stage_alone(layout: Layout) -> Problems:
    """A tensor-parallel stage is a process per rank, so nothing else can live in its process (sglang-omni 0.1.9
    `PipelineConfig.validate_processes`)."""
    for name, stages in layout.processes().items():
        if len(stages) == 1:
            continue
        split = [stage for stage in stages if (stage.ranks or len(stage.slots)) > 1]
        if split:
            yield Problem(
                Reason.PROCESS_SPLIT,
                f"Process {name} has the tensor-parallel stage {split[0].name} and other stages.",
                f"{split[0].path}.process",
                stages=tuple(stage.name for stage in stages),
                remedy=f"Give {split[0].name} a process of its own.",
            )


def pod_names_distinct(layout: Layout) -> Problems:
    """`a_b` and `a-b` would be the same pod."""
    processes = layout.processes()
    if len({process.replace("_", "-").lower() for process in processes}) == len(processes):
        return
    names = [stage_pod_name("", 0, process) for process in processes]
    for name, process in zip(names, layout.processes(), strict=True):
        if names.count(name) > 1:
            yield Problem(
                Reason.NAMES_COLLIDE,
                f"Process {process!r} has the same pod name as another one, since _ becomes - there.",
                "spec.stages",
                remedy="Rename one of the processes.",
            )
