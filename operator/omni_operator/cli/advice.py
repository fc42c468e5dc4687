"""A reason → what a person can change about it, and what to look at next. Pure.

Where the rules can say what would fit, they do; what is written here is only what no rule knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from omni_operator.api import names
from omni_operator.api.quantities import format_percent
from omni_operator.api.reasons import Reason
from omni_operator.cli.live_model import LiveModel, LiveStage
from omni_operator.cli.live_waiting import span_of_time, startup_limit
from omni_operator.planning.layout import Layout, SlotUse
from omni_operator.planning.shrink import largest_fitting_budget


@dataclass(frozen=True)
class Advice:
    """What to change, and commands that show more. Commands lack the flags that choose cluster and namespace."""

    change: str
    commands: tuple[str, ...] = ()


OPERATOR = "kubectl get pods -A -l app.kubernetes.io/name=omni-operator"


def of_stage(model: LiveModel, row: LiveStage) -> Advice | None:
    """What helps a stage that is not ready; None where there is nothing to do but wait."""
    word = row.reason.split(":", 1)[0]
    found = _BY_STAGE_REASON.get(word)
    if found is not None:
        return found(model, row)
    if row.state == "Pending" and row.reason:
        return _unschedulable(model, row)
    if row.state in ("Failed", "Restarting"):
        return Advice(f"Read how {row.name} ended.", (_log(model, row, row.state == "Restarting"),))
    if row.state == "Missing":
        return Advice(f"Pod {row.pod} is not there; the operator makes it anew. Look whether it can.", (OPERATOR,))
    return None


def of_model(model: LiveModel, reason: str) -> Advice | None:
    """What helps an OmniModel as a whole."""
    found = _BY_MODEL_REASON.get(reason)
    return found(model) if found else None


def _out_of_budget(model: LiveModel, row: LiveStage) -> Advice:
    layout = model.layout
    stage = next((stage for stage in layout.stages if stage.name == row.name), None) if layout else None
    change = f"Raise gpuMemory of {row.name}"
    if layout is not None and stage is not None and stage.budget is not None:
        most = largest_fitting_budget(layout, stage)
        if most is not None and str(most) != str(stage.budget):
            change += f" from {stage.budget}: its GPU has room up to {most}"
        else:
            change += f": its GPU is full, so lower another stage's first ({_others(layout, row)})"
    load = "or lower its load, such as engineArgs {max_running_requests: …} or kvCache"
    return Advice(f"{change}; {load}.", (_log(model, row, row.state == "Restarting"),))


def _others(layout: Layout, row: LiveStage) -> str:
    shares = {
        name: share
        for slot in row.slots
        for name, share in SlotUse(layout, slot).shares.items()
        if name != row.name  # Biggest first, which SlotUse promises.
    }
    return ", ".join(f"{name} {format_percent(share)}" for name, share in list(shares.items())[:3])


def _start_timeout(model: LiveModel, row: LiveStage) -> Advice:
    limit = startup_limit(model, row.name)
    had = f", which had {span_of_time(limit)}" if limit else ""
    return Advice(
        f"If {row.name} still made progress (a download, a compilation), raise its startupTimeout{had}; a cache that "
        "outlives the pod (spec.model.cache) spares the next download. If not, its log says where it hangs.",
        (_log(model, row, True),),
    )


def _bad_config(model: LiveModel, row: LiveStage) -> Advice:
    return Advice(
        f"Correct what its engine refuses, mostly in engineArgs of {row.name}; a restart would repeat it.",
        (_log(model, row, row.state == "Restarting"),),
    )


def _gpu_fault(model: LiveModel, row: LiveStage) -> Advice:
    node = _node(model, row)
    where = f" of node {node}" if node else ""
    return Advice(
        f"If it comes again, the GPU{where} is suspect rather than the declaration: look for Xid errors in the node's "
        "kernel log, and for the MPS control daemon.",
        (_log(model, row, True), *((f"kubectl describe node {node}",) if node else ())),
    )


def _image(model: LiveModel, row: LiveStage) -> Advice:
    return Advice(
        "Correct spec.image, or give spec.imagePullSecrets that the registry accepts.",
        (f"kubectl describe pod {row.pod}",),
    )


def _unschedulable(model: LiveModel, row: LiveStage) -> Advice:
    labels = f"{names.MODEL_LABEL}={model.name},{names.REPLICA_LABEL}={row.replica}"
    return Advice(
        f"No node has what {row.name} asks for. Free a GPU of that kind, add a node, or ask for less: gpus.card, "
        "gpus.selector, resources of the stage, scheduling.",
        (
            f"kubectl describe pod {row.pod}",
            f"kubectl describe resourceclaims -l {labels}",
            "kubectl get resourceslices",
        ),
    )


def _name_taken(model: LiveModel) -> Advice:
    return Advice("Delete or rename the object of that name, or create the OmniModel under another name.")


def _write_refused(model: LiveModel) -> Advice:
    return Advice(
        "An admission policy or a quota of the cluster says no: its message names it.",
        ("kubectl get resourcequota",),
    )


def _mps_unavailable(model: LiveModel) -> Advice:
    return Advice(
        "Turn on the MPSSupport feature gate of NVIDIA's DRA driver, or set gpus.sharing.strategy to TimeSlicing, "
        "under which only the engines limit memory.",
        ("kubectl get deviceclasses,resourceslices",),
    )


def _not_attached(model: LiveModel, row: LiveStage) -> Advice:
    node = _node(model, row)
    where = f" on node {node}" if node else ""
    return Advice(
        f"See why the MPS control daemon of its GPU is not there{where}: NVIDIA's DRA driver runs one for each claim, "
        "as a pod mps-control-daemon-… in its own namespace. Until it is there the stage does not start.",
        ("kubectl get pods -A -o wide | grep mps-control-daemon", _log(model, row, False)),
    )


def _time_slicing_unavailable(model: LiveModel) -> Advice:
    return Advice(
        "Turn on the TimeSlicingSettings feature gate of NVIDIA's DRA driver, or remove gpus.sharing.interval.",
        ("kubectl get deviceclasses,resourceslices",),
    )


def _not_advertised(model: LiveModel) -> Advice:
    return Advice(
        "Install NVIDIA's DRA driver or its device plugin, or ask for what the nodes offer.",
        ("kubectl get deviceclasses,resourceslices", "kubectl get nodes -L nvidia.com/gpu.sharing-strategy"),
    )


def _scaled_to_zero(model: LiveModel) -> Advice:
    return Advice("Raise spec.replicas.", (f"kubectl scale omnimodel {model.name} --replicas=1",))


def _front_not_ready(model: LiveModel) -> Advice:
    return Advice(
        "The front connects once all its stages are ready; if it does not, its log says why.",
        (f"kubectl omni logs {model.name} front",),
    )


def _not_seen(model: LiveModel) -> Advice:
    return Advice(
        "See that the operator runs, and that it watches this namespace (watchNamespace of the chart).", (OPERATOR,)
    )


def _node(model: LiveModel, row: LiveStage) -> str:
    """Where the GPUs of a stage are; empty while it has none."""
    return next((card.node for card in model.cards if card.slot in row.slots and card.replica == row.replica), "")


def _log(model: LiveModel, row: LiveStage, previous: bool) -> str:
    replica = f" -r {row.replica}" if len(model.replicas) > 1 else ""
    return f"kubectl omni logs {model.name} {row.name}{replica}{' --previous' if previous else ''}"


_BY_STAGE_REASON: Mapping[str, Callable[[LiveModel, LiveStage], Advice]] = {
    Reason.OUT_OF_BUDGET: _out_of_budget,
    Reason.STAGE_START_TIMEOUT: _start_timeout,
    Reason.BAD_CONFIG: _bad_config,
    Reason.GPU_FAULT: _gpu_fault,
    Reason.MPS_NOT_ATTACHED: _not_attached,
    "ImagePullBackOff": _image,
    "ErrImagePull": _image,
    "ErrImageNeverPull": _image,
    "InvalidImageName": _image,
}
"""By the first word of a stage's reason, which is ours or the kubelet's."""

_BY_MODEL_REASON: Mapping[str, Callable[[LiveModel], Advice]] = {
    Reason.NAME_TAKEN: _name_taken,
    Reason.WRITE_REFUSED: _write_refused,
    Reason.MPS_UNAVAILABLE: _mps_unavailable,
    Reason.TIME_SLICING_UNAVAILABLE: _time_slicing_unavailable,
    Reason.RESOURCE_NOT_ADVERTISED: _not_advertised,
    Reason.SCALED_TO_ZERO: _scaled_to_zero,
    Reason.FRONT_NOT_READY: _front_not_ready,
    "NotSeen": _not_seen,
}
