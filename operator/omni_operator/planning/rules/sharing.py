"""Sharing: what MPS, time-slicing and the device plugin can and cannot do for the stages of one GPU."""

from __future__ import annotations

from omni_operator.api.enums import Enforcer, Placement, SharingStrategy
from omni_operator.api.quantities import MIB, format_bytes
from omni_operator.api.reasons import Reason
from omni_operator.planning.estimate_need import CUDA_CONTEXT
from omni_operator.planning.layout import Layout, Problem, Problems, Severity, SlotUse, Stage

MPS_CLIENTS = 48
"""Client contexts that one GPU takes under MPS (NVIDIA MPS documentation, Volta and later)."""


def sharing_allows_layout(layout: Layout) -> Problems:
    """Without sharing, a GPU takes one process."""
    if not layout.unshared:
        return
    for slot, use in layout.uses.items():
        if use.clients > 1:
            yield Problem(
                Reason.SHARING_UNSUPPORTED,
                f"Sharing is None, but GPU {slot} has {use.clients} processes: {', '.join(sorted(use.processes))}.",
                "spec.gpus.sharing.strategy",
                slot=slot,
                stages=tuple(stage.name for stage in use.stages),
                remedy="Use strategy MPS or TimeSlicing, one process for these stages, or another GPU.",
            )


def mps_clients(layout: Layout) -> Problems:
    """MPS takes 48 client contexts a GPU."""
    if not layout.mps:
        return
    for slot, use in layout.uses.items():
        if use.clients > MPS_CLIENTS:
            yield Problem(
                Reason.TOO_MANY_CLIENTS,
                f"GPU {slot} would have {use.clients} MPS clients; a GPU takes {MPS_CLIENTS}.",
                "spec.stages",
                slot=slot,
                stages=tuple(stage.name for stage in use.stages),
                remedy="Move stages to another GPU, or put several into one process.",
            )


def mps_limit(layout: Layout, use: SlotUse, process: str) -> int | None:
    """Bytes that MPS lets each single process of a pod pin on a slot: the budgets of its stages there, divided by the
    processes that open the GPU, down to whole MiB. None where a budget or the card is not known, where the process is
    not on the slot, or under no MPS. The rules judge by it, and the claim and the pods are given it."""
    stages = [stage for stage in use.stages if stage.process == process]
    if not layout.mps or layout.card is None or not stages:
        return None
    budgets = 0
    for stage in stages:
        if stage.budget is None:
            return None
        budgets += stage.budget.bytes_of(layout.card.memory)
    return budgets // max(stage.gpu_processes for stage in stages) // MIB * MIB


def mps_limit_holds_context(layout: Layout) -> Problems:
    """The limit is per process and counts CUDA's own memory: a very small share leaves nothing for the model."""
    if not layout.mps or layout.card is None:
        return
    for slot, use in layout.uses.items():
        if len(use.processes) < 2:
            continue
        for process in use.processes:
            limit = mps_limit(layout, use, process)
            if limit is not None and limit < CUDA_CONTEXT:
                yield Problem(
                    Reason.BUDGET_TIGHT,
                    f"Under MPS each process of {process} may take {format_bytes(limit)} of GPU {slot}, its CUDA "
                    "context included.",
                    "spec.stages",
                    Severity.WARNING,
                    slot=slot,
                    stages=tuple(stage.name for stage in use.stages if stage.process == process),
                    needed=CUDA_CONTEXT,
                    available=limit,
                    remedy=f"A context alone takes about {format_bytes(CUDA_CONTEXT)}; raise gpuMemory.",
                )


def compute_percentage_needs_mps(layout: Layout) -> Problems:
    """Only MPS can cap a process's threads."""
    for stage in layout.stages:
        if stage.compute_percentage is not None and not layout.mps:
            yield Problem(
                Reason.SHARING_UNSUPPORTED,
                f"Stage {stage.name} has computePercentage, which only MPS enforces, and the strategy "
                f"is {layout.strategy}.",
                f"{stage.path}.computePercentage",
                stages=(stage.name,),
                remedy="Remove computePercentage, or use strategy MPS.",
            )


def enforced_by(layout: Layout, stage: Stage) -> Enforcer | None:
    """Who keeps a stage within its share; None for a stage without one. MPS limits the clients of a shared GPU."""
    if stage.budget is None or not stage.slots:
        return None
    shared = [slot for slot in stage.slots if slot in layout.divided_slots()]
    if any(mps_limit(layout, layout.uses[slot], stage.process) is not None for slot in shared):
        return Enforcer.MPS
    return Enforcer.ENGINE if stage.engine and stage.keeps_share else Enforcer.NOTHING


def interval_needs_time_slicing(layout: Layout) -> Problems:
    """A time slice can be set through NVIDIA's DRA driver alone, and where GPUs are time-sliced."""
    if layout.interval is None or (layout.strategy is SharingStrategy.TIME_SLICING and not layout.on_device_plugin):
        return
    sliced = layout.strategy is SharingStrategy.TIME_SLICING
    how = f"the backend is {layout.backend}" if sliced else f"the strategy is {layout.strategy}"
    yield Problem(
        Reason.SHARING_UNSUPPORTED,
        f"spec.gpus.sharing.interval is set, and {how}.",
        "spec.gpus.sharing.interval",
        remedy="Remove interval, or use backend DRA." if sliced else "Remove interval, or use strategy TimeSlicing.",
    )


def shares_enforced(layout: Layout) -> Problems:
    """One warning per shared GPU, where a stage could take more than its share and nothing would stop it.

    MPS stops any process at its limit. Without it, an engine keeps to the bytes it is given, but of another stage only
    what PyTorch allocates is capped. Stages that are known to ignore their share are named under MPS too: there they
    fail themselves instead of a neighbour.
    """
    for slot, use in layout.uses.items():
        if use.clients < 2 or layout.unshared:
            continue
        loose = [stage.name for stage in use.stages if not stage.keeps_share or not (stage.engine or layout.mps)]
        if not loose:
            continue
        if layout.mps:
            remedy = "MPS ends it at its limit: give it what it was measured to take."
        else:
            remedy = "Use strategy MPS, or give them what they were measured to take."
        yield Problem(
            Reason.SHARE_NOT_ENFORCED,
            f"On GPU {slot} nothing in the engine keeps {', '.join(loose)} within gpuMemory.",
            "spec.gpus.sharing.strategy",
            Severity.WARNING,
            slot=slot,
            stages=tuple(loose),
            remedy=remedy,
        )


def copies_capped(layout: Layout) -> Problems:
    """Copies that size their KV cache by what is free get unequal ones, by the order they start in."""
    for stage in layout.stages:
        capped = stage.kv_cache is not None or "max_total_tokens" in stage.engine_args
        if stage.engine and stage.slots and stage.copies_per_slot > 1 and not capped:
            yield Problem(
                Reason.COPIES_UNCAPPED,
                f"Stage {stage.name} runs {stage.copies_per_slot} times on one GPU without a cap of its KV cache.",
                f"{stage.path}.kvCache",
                Severity.WARNING,
                slot=stage.slots[0],
                stages=(stage.name,),
                remedy="Set kvCache, or engineArgs.max_total_tokens, so that every copy gets the same.",
            )


def plugin_chooses_gpu(layout: Layout) -> Problems:
    """The device plugin cannot say that two pods share one GPU, unless a node has no other."""
    if not layout.on_device_plugin:
        return
    if layout.shared_slots() and not layout.device_plugin.one_gpu_nodes:
        yield Problem(
            Reason.SHARING_UNSUPPORTED,
            "With the device plugin no two pods are sure to share one GPU, and this layout shares GPU "
            f"{', '.join(map(str, layout.shared_slots()))}.",
            "spec.gpus.sharing.backend",
            remedy="Use backend DRA, nodes with one GPU, or give the stages of each GPU one process.",
        )
    if layout.device_plugin.one_gpu_nodes and len(layout.slots) > 1 and layout.placement is Placement.SAME_NODE:
        yield Problem(
            Reason.TOO_MANY_SLOTS,
            f"The layout uses {len(layout.slots)} GPUs of one node, and the nodes have one each.",
            "spec.gpus.placement",
            remedy="Use one slot, or placement AnyNode.",
        )


def plugin_requests_one(layout: Layout) -> Problems:
    """A shared GPU of the device plugin can be requested once per pod: "maximum request size is 1"."""
    if not layout.on_device_plugin or layout.unshared:
        return
    for process, stages in layout.processes().items():
        slots = {slot for stage in stages for slot in stage.slots}
        if len(slots) > 1 and (layout.mps or slots & set(layout.shared_slots())):
            yield Problem(
                Reason.SHARED_REQUEST_LIMIT,
                f"Process {process} needs {len(slots)} GPUs, and the device plugin gives a pod only one shared GPU.",
                f"{stages[0].path}.gpus",
                stages=tuple(stage.name for stage in stages),
                remedy="Use backend DRA, or strategy None with GPUs of its own.",
            )


def plugin_parts(layout: Layout) -> Problems:
    """The device plugin divides a GPU into equal parts; under MPS each process is limited to total ÷ replicas."""
    parts = layout.device_plugin.replicas
    if not layout.on_device_plugin or layout.unshared or parts is None:
        return
    if parts < 2:
        yield Problem(
            Reason.SHARING_UNSUPPORTED,
            f"The device plugin divides each GPU into {parts}; sharing needs 2 or more.",
            "spec.gpus.sharing",
            remedy="Raise replicas in the device plugin's sharing configuration.",
        )
        return
    for slot, use in layout.uses.items():
        pods = len(use.processes)
        if pods > parts:
            yield Problem(
                Reason.TOO_MANY_CLIENTS,
                f"GPU {slot} has {pods} pods, but the device plugin divides it into {parts}.",
                "spec.stages",
                slot=slot,
                stages=tuple(stage.name for stage in use.stages),
                remedy=f"Put stages into one process, or set the device plugin's replicas to {pods}.",
            )
        if layout.mps and layout.card is not None:
            yield from _within_part(layout.card.memory // parts, slot, use)


def plugin_threads(layout: Layout) -> Problems:
    """Under MPS the plugin's daemon caps each process at 100 ÷ replicas % of the threads, which a client can only lower
    (k8s-device-plugin, `cmd/mps-control-daemon/mps/daemon.go`)."""
    parts = layout.device_plugin.replicas
    if not layout.on_device_plugin or not layout.mps or not parts:
        return
    for stage in layout.stages:
        if stage.compute_percentage is not None and stage.compute_percentage > 100 // parts:
            yield Problem(
                Reason.SHARE_NOT_ENFORCED,
                f"Stage {stage.name} may use {stage.compute_percentage}% of a GPU's threads, but the device plugin "
                f"divides each GPU into {parts} and gives a process {100 // parts}%.",
                f"{stage.path}.computePercentage",
                Severity.WARNING,
                stages=(stage.name,),
                remedy="Lower computePercentage, use backend DRA, or a plugin with fewer replicas.",
            )


def _within_part(part: int, slot: int, use: SlotUse) -> Problems:
    """Budget of a pod ≤ limit of a process × its processes (k8s-device-plugin: total ÷ replicas per CUDA client)."""
    for process in use.processes:
        stages = [stage for stage in use.stages if stage.process == process]
        available = part * max(stage.gpu_processes * stage.copies_per_slot for stage in stages)
        needed = sum(_bytes_of(stage, use) for stage in stages)
        if needed > available:
            yield Problem(
                Reason.BUDGET_EXCEEDED,
                f"Process {process} needs {format_bytes(needed, unlike=available)} of GPU {slot}; the device plugin's "
                f"equal parts under MPS give it {format_bytes(available)}.",
                f"{stages[0].path}.gpuMemory",
                slot=slot,
                stages=tuple(stage.name for stage in stages),
                needed=needed,
                available=available,
                remedy="Use backend DRA, which gives each process its own limit, or a plugin with fewer replicas.",
            )


def _bytes_of(stage: Stage, use: SlotUse) -> int:
    if stage.budget is None or use.card is None:
        return 0
    return stage.budget.bytes_of(use.card.memory) * stage.copies_per_slot
