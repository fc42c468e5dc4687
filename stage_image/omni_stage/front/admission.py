"""Whether new requests are let in. An ASGI layer around the server, and the switch that it obeys. No torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

RETRY_AFTER_SECONDS = 5
TRY_AGAIN_LATER = 1013
"""WebSocket's close code for it."""
INTERNAL_ERROR = 500


class Admission:
    """Open while every stage of the replica is ready."""

    def __init__(self) -> None:
        self.reason: str | None = "the stages have not been seen ready yet"
        """Why it is closed; None while it is open."""
        self.closings = 0
        """How often it has been closed: a request that lived through one has lost a stage."""
        self.last_reason = ""
        self.changed = asyncio.Event()
        """Set by every change; whoever waits for it clears it."""

    def close(self, reason: str) -> None:
        """Let nothing in any more."""
        self.closings += 1
        self.last_reason = reason
        self.keep_closed(reason)

    def keep_closed(self, reason: str) -> None:
        """It is closed, for this reason now."""
        self.reason = reason
        self.changed.set()

    def open(self) -> None:
        """Let requests in again."""
        self.reason = None
        self.changed.set()


def refusal(reason: str) -> bytes:
    """The body of a 503, in the shape of OpenAI's errors."""
    error = {"message": f"not available: {reason}", "type": "service_unavailable", "code": "stage_not_ready"}
    return json.dumps({"error": error}).encode()


class Gate:
    """Answers 503 for the server while admission is closed; looking at it (GET) stays possible."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], admission: Admission) -> None:
        self.app, self.admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        asks = scope["type"] == "websocket" or (scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"))
        if not asks:
            await self.app(scope, receive, send)
        elif self.admission.reason is not None:
            await refuse(scope, receive, send, self.admission.reason)
        elif scope["type"] == "http":
            await self.app(scope, receive, self._explaining(send))
        else:
            await self.app(scope, receive, send)

    def _explaining(self, send: Send) -> Send:
        """Turn the server's plain 500 into a 503 that says why, for a request whose stage was lost under way."""
        closings = self.admission.closings
        replaced = False

        async def explain(message: Message) -> None:
            nonlocal replaced
            lost = self.admission.closings != closings
            if message["type"] == "http.response.start" and message["status"] == INTERNAL_ERROR and lost:
                replaced = True
                await send_refusal(send, self.admission.last_reason)
            elif not replaced:
                await send(message)

        return explain


async def refuse(scope: Scope, receive: Receive, send: Send, reason: str) -> None:
    """Turn a request away."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": reason[:120]})
    else:
        await send_refusal(send, reason)


async def send_refusal(send: Send, reason: str) -> None:
    """One whole 503."""
    body = refusal(reason)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", str(RETRY_AFTER_SECONDS).encode()),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
