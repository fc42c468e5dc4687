"""What a pod says for itself, through the API server: its container's log, and its supervisor's page.

Both need rights of their own (`pods/log`, `pods/proxy`), so a caller must do without. Neither is JSON of the API, so
bodies are read as they come.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.exceptions import ApiException

from omni_operator.kube.client import PODS, TIMEOUT_SECONDS, Client, KubeError, Manifest

PAGE_SECONDS = 3.0
"""A supervisor answers at once or not at all."""
MOST_BYTES = 1024 * 1024
"""Of a page: a pod is not trusted to end."""


async def stage_page(client: Client, namespace: str, pod: str, port: int) -> Manifest:
    """The answer of a supervisor's `/stage`. Raises KubeError."""
    path = PODS.path(namespace, f"{pod}:{port}", "proxy") + "/stage"
    text = b""
    async with aclosing(_stream(client, path, {}, PAGE_SECONDS)) as chunks:
        async for chunk in chunks:
            text += chunk
            if len(text) > MOST_BYTES:
                break
    try:
        page = json.loads(text)
    except (ValueError, RecursionError):
        page = None
    if not isinstance(page, dict):
        raise KubeError(f"GET {path}", 0, "NotJson", "the pod's answer is no page of a supervisor")
    return page


def log_of(
    client: Client,
    namespace: str,
    pod: str,
    container: str,
    *,
    follow: bool = False,
    previous: bool = False,
    tail: int | None = None,
) -> AsyncGenerator[bytes, None]:
    """The log of a pod's container, as it comes. Raises KubeError."""
    query = {
        **({"container": container} if container else {}),
        **({"follow": "true"} if follow else {}),
        **({"previous": "true"} if previous else {}),
        **({"tailLines": str(tail)} if tail is not None else {}),
    }
    return _stream(client, PODS.path(namespace, pod, "log"), query, None)


async def _stream(
    client: Client, path: str, query: Mapping[str, str], seconds: float | None
) -> AsyncGenerator[bytes, None]:
    """The body of a GET. `seconds` limits the whole call; None lets it go on for ever. Raises KubeError."""
    call = f"GET {path}"
    headers: dict[str, str] = {"Accept": "*/*"}
    url = client.api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
    limit = aiohttp.ClientTimeout(total=seconds, sock_connect=TIMEOUT_SECONDS)
    try:
        await client.api.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
        answer = await client.api.rest_client.request("GET", url, headers=headers, _request_timeout=limit)
        async with answer.response as response:
            if not 200 <= response.status <= 299:
                raise KubeError(call, response.status, str(response.reason), _message(await response.read()))
            async for chunk in response.content.iter_any():
                yield chunk
    except ApiException as error:
        raise KubeError(call, int(error.status or 0), str(error.reason), _message(error.body)) from error
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise KubeError(call, 0, type(error).__name__, str(error) or "no answer") from error


def _message(body: bytes | str | None) -> str:
    """The sentence of a Status object, or the beginning of whatever else came."""
    try:
        return str(json.loads(body or "")["message"])
    except (ValueError, TypeError, KeyError):
        return (body.decode(errors="replace") if isinstance(body, bytes) else body or "")[:500]
