"""The one chain of rules: does a layout fit its GPUs, and if not, why, by how much, and what would.

The CLI, the webhook and the controller all call `check`, so their answers cannot differ. Rules stand in
`omni_operator.planning.rules`; a problem is a value; no float decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum

from omni_operator.api.names import MAX_POD_NAME, stage_pod_name
from omni_operator.api.reasons import Reason
from omni_operator.planning.layout import Layout, Problem, Problems, Severity, refused
from omni_operator.planning.resolve import Resolution
from omni_operator.planning.rules import bookings, memory, model, overrides, pods, sharing, slots

Rule = Callable[[Layout], Problems]

REFUSING: tuple[Rule, ...] = (
    slots.slots_without_gaps,
    slots.slots_within_claim,
    slots.slots_of_a_stage_distinct,
    slots.one_slot_per_rank,
    memory.budgets_on_gpus_only,
    memory.budgets_on_shared_slots,
    memory.neighbours_known,
    memory.stage_within_card,
    memory.sum_within_limit,
    memory.kv_cache_within_budget,
    memory.kv_pools_within_card,
    memory.card_known,
    slots.stages_apart,
    slots.stages_together,
    slots.local_edges_in_one_process,
    slots.process_on_same_slots,
    slots.split_stage_alone,
    sharing.sharing_allows_layout,
    sharing.plugin_chooses_gpu,
    sharing.plugin_requests_one,
    sharing.plugin_parts,
    sharing.mps_clients,
    sharing.compute_percentage_needs_mps,
    sharing.interval_needs_time_slicing,
    slots.pod_names_distinct,
    model.weights_within_budget,
    overrides.fields_left_to_operator,
    overrides.values_that_keep_stages_serving,
    overrides.metadata_left_to_operator,
    overrides.variables_left_to_driver,
    overrides.mounts_left_to_operator,
    overrides.names_apart,
    bookings.claims_shared,
    bookings.gpus_booked_once,
    bookings.resources_make_sense,
    pods.additions_complete,
    pods.users_can_start,
    pods.one_user_per_daemon,
    pods.namespaces_of_daemon,
)
"""Whatever one of these finds is an error or a question."""
WARNING: tuple[Rule, ...] = (
    sharing.mps_limit_holds_context,
    sharing.copies_capped,
    sharing.plugin_threads,
    sharing.shares_enforced,
    memory.headroom,
    model.model_has_room,
    pods.user_of_daemon,
)
"""Whatever one of these finds is accepted, and said."""
RULES = (*REFUSING, *WARNING)
_AFTER_THE_SUMS = tuple(rule for rule in REFUSING if rule is not memory.sum_within_limit)

_ORDER = {Severity.ERROR: 0, Severity.QUESTION: 1, Severity.WARNING: 2}


class Verdict(StrEnum):
    """What the problems of a layout amount to."""

    ACCEPTED = "accepted"
    UNDECIDED = "undecided"
    """Nothing is wrong, but something that only the user knows is missing; nothing would be started."""
    REFUSED = "refused"


def check(layout: Layout, *, strict: bool = False) -> tuple[Problem, ...]:
    """All problems of a layout: errors, then questions, then warnings, each in the order of the rules.

    `strict` makes every warning an error, for pipelines where a full card must not pass.
    """
    return ordered((problem for rule in RULES for problem in rule(layout)), strict)


def check_model(name: str, resolution: Resolution, *, strict: bool = False) -> tuple[Problem, ...]:
    """All that is wrong with an OmniModel of that name, worst first: the one verdict of CLI, webhook and controller."""
    layout = resolution.layout
    if layout is None:
        return ordered(resolution.problems, strict)
    return ordered((*check(layout), *check_names(name, layout), *resolution.problems), strict)


def accepted(layout: Layout) -> bool:
    """Whether `check` finds nothing but warnings. Stops at the first that is none, so searches ask this.

    The common refusal comes first and without its words, which take longer than all else: the sums, by the very
    comparison that `sum_within_limit` makes.
    """
    if any(use.exceeds(layout.limit) for use in layout.uses.values()):
        return False
    return all(next(rule(layout), None) is None for rule in _AFTER_THE_SUMS)


def verdict(problems: tuple[Problem, ...]) -> Verdict:
    """Refused beats undecided beats accepted."""
    if any(problem.severity is Severity.ERROR for problem in problems):
        return Verdict.REFUSED
    return Verdict.UNDECIDED if refused(problems) else Verdict.ACCEPTED


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


def ordered(problems: Iterable[Problem], strict: bool = False) -> tuple[Problem, ...]:
    """Errors, then questions, then warnings; with `strict`, warnings are errors."""
    found = [_as_error(problem) for problem in problems] if strict else problems
    return tuple(sorted(found, key=lambda problem: _ORDER[problem.severity]))


def _as_error(problem: Problem) -> Problem:
    return replace(problem, severity=Severity.ERROR) if problem.severity is Severity.WARNING else problem
