"""Waits until an OmniModel's spec is rolled out, and says on the way what is waited for, in the words of Ready."""

from __future__ import annotations

import asyncio
import sys
import time

from omni_operator.api.reasons import ConditionType, Reason
from omni_operator.cli.live import Cluster
from omni_operator.cli.live_explain import what_to_change
from omni_operator.cli.live_model import LiveModel, Readings
from omni_operator.cli.live_parse import live_model
from omni_operator.cli.live_read import model_of
from omni_operator.cli.live_text import headline
from omni_operator.cli.live_watch import passing
from omni_operator.cli.paint import canvas_for
from omni_operator.kube.client import KubeError

SECONDS = 1.0
NOT_DONE = 1
FOR_GOOD = frozenset({Reason.BAD_CONFIG, Reason.OUT_OF_BUDGET, Reason.STAGE_START_TIMEOUT, Reason.NAME_TAKEN})
"""Reasons with which waiting does not help: only a change of the spec, or of the cluster, does."""


async def follow(cluster: Cluster, name: str, limit: float | None, flags: str) -> int:
    """The exit code. Raises KubeError, and BadInput where there is no such OmniModel."""
    end = None if limit is None else time.monotonic() + limit
    told = ""
    model = live_model(await model_of(cluster, name), Readings())
    while True:
        words = progress(model)
        if words != told:
            print(words, flush=True)
        told = words
        if model.ready:
            return 0
        if failed(model):
            return _ended(model, f"omnimodel {name} is not rolled out", flags)
        if end is not None and time.monotonic() >= end:
            return _ended(model, f"omnimodel {name} is not rolled out within the time given", flags)
        await asyncio.sleep(SECONDS if end is None else min(SECONDS, max(0.0, end - time.monotonic())))
        model = await _look(cluster, name, model)


def progress(model: LiveModel) -> str:
    """One line on how far it is."""
    if model.ready:
        ready = model.condition(ConditionType.READY)
        said = ready.message if ready is not None else ""
        return f"omnimodel {model.name} generation {model.generation} is rolled out. {said}"
    reason, message = headline(model)
    return f"Waiting for generation {model.generation}: {reason}: {message}"


def failed(model: LiveModel) -> bool:
    """Whether the spec as it is now is refused, or failed for good."""
    accepted, ready = model.condition(ConditionType.ACCEPTED), model.condition(ConditionType.READY)
    if model.deleting:
        return True
    if not model.current or ready is None:
        return False
    return (accepted is not None and not accepted.good) or ready.reason in FOR_GOOD


async def _look(cluster: Cluster, name: str, before: LiveModel) -> LiveModel:
    """As it is now; as it was, while the cluster does not answer."""
    try:
        return live_model(await model_of(cluster, name), Readings())
    except KubeError as error:
        if not passing(error):
            raise
        return before


def _ended(model: LiveModel, words: str, flags: str) -> int:
    canvas = canvas_for(sys.stderr)
    sys.stderr.write(f"{words}.\n{canvas.draw(what_to_change(model, canvas, flags))}")
    return NOT_DONE
