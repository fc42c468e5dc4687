"""sglang-omni's transfer of data between stages, made to survive a neighbour that restarts.

As it is, any failed or late acknowledgement ends the whole sending stage, and an abort leaves the transfer waiting. In
one process group that is right: all end together. Between pods it would let one restarting stage take its neighbours
along. Here a refused transfer is the request's failure only, an abort settles the request's transfers after a short
time for the receiver to drain them, and only a neighbour that is silent for minutes still ends the stage (PeerLost).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from sglang_omni.comm.engine import CommEngine, PendingTransfer
from sglang_omni.pipeline.stage import runtime

from omni_stage.engine.relay import Put

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 5.0
"""After an abort, how long the receiver may still fetch what was promised to it."""


class PeerLost(RuntimeError):
    """A neighbour did not take over data in time, and nobody has aborted the request meanwhile."""


class PodCommEngine(CommEngine):  # type: ignore[misc]
    """Between pods; transfers by any other relay stay sglang-omni's own."""

    async def watch_pending(self, object_id: str, pending: PendingTransfer) -> bool:
        """As upstream's, with a refusal no longer fatal to the stage."""
        if not all(isinstance(op, Put) for op in pending.ops):
            return bool(await super().watch_pending(object_id, pending))
        try:
            return bool(await super().watch_pending(object_id, pending))
        except TimeoutError as error:
            raise PeerLost(f"{object_id}: not taken over within {self.ack_timeout_s:.0f} s") from error
        except RuntimeError as error:
            logger.warning("transfer %s was refused: %s", object_id, error)
            return False

    def cleanup(self, request_id: str) -> None:
        """As upstream's; and the request's transfers to other pods settle soon."""
        super().cleanup(request_id)
        for object_id, pending in self.pending.items():
            own = object_id == request_id or object_id.startswith(f"{request_id}:")
            if own and all(isinstance(op, Put) for op in pending.ops):
                asyncio.get_running_loop().call_later(SETTLE_SECONDS, settle, pending)


def settle(pending: Any) -> None:
    """End a transfer as if it had been acknowledged, so that its memory is let go."""
    if not pending.ack.done():
        pending.ack.set_result(None)


def install() -> None:
    """Let sglang-omni's stages use it."""
    runtime.CommEngine = PodCommEngine
