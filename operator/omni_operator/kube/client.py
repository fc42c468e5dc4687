"""A small client over `kubernetes.aio`: plain dicts, one error type, a time limit on every call, calls counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config import load_incluster_config, load_kube_config
from kubernetes.aio.config.config_exception import ConfigException

from omni_operator.api import names

Manifest = dict[str, Any]

TIMEOUT_SECONDS = 30
PAGE = 500
"""Objects a list call returns at most; the rest comes in further calls."""
CONNECTIONS = 32
MAX_RETRY_AFTER = 300.0
"""Seconds; no server silences us for longer."""


class KubeError(Exception):
    """A call that did not succeed. `status` is the HTTP status, 0 where there was no answer; `reason` is the API's
    word, such as NotFound, Conflict, Invalid, Forbidden; `retry_after` are the seconds that the server wants to be
    left alone, 0 where it does not say."""

    def __init__(self, call: str, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{call}: {status} {reason}: {message}")
        self.call = call
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def user_can_fix(self) -> bool:
        """Whether trying again with the same object is useless: refused by validation, admission, policy or quota."""
        return self.status in (400, 403, 422)

    @property
    def namespace_terminating(self) -> bool:
        """Whether nothing new can be made because the namespace is going away."""
        return self.status == 403 and "is being terminated" in self.message


@dataclass(frozen=True)
class Kind:
    """Where a kind lives in the API."""

    api_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """URL path of the collection, or of one object."""
        root = "/api/v1" if self.api_version == "v1" else f"/apis/{self.api_version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


OMNI_MODELS = Kind(names.API_VERSION, names.PLURAL)
PODS = Kind("v1", "pods")
SERVICES = Kind("v1", "services")
NETWORK_POLICIES = Kind("networking.k8s.io/v1", "networkpolicies")
CLAIMS = Kind("resource.k8s.io/v1", "resourceclaims")
SLICES = Kind("resource.k8s.io/v1", "resourceslices", namespaced=False)
DEVICE_CLASSES = Kind("resource.k8s.io/v1", "deviceclasses", namespaced=False)
NODES = Kind("v1", "nodes", namespaced=False)
CONTROLLER_REVISIONS = Kind("apps/v1", "controllerrevisions")
EVENTS = Kind("events.k8s.io/v1", "events")
CORE_EVENTS = Kind("v1", "events")
"""The same objects; only here can they be chosen by the object that they are about."""


class Client:
    """Calls to one cluster. Use as an async context manager."""

    def __init__(self, configuration: Configuration) -> None:
        configuration.connection_pool_maxsize = CONNECTIONS
        self.api = ApiClient(configuration)
        """For those parts of the Kubernetes client that make their own calls."""
        self.calls = 0
        """Calls made so far."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.api.close()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """The object, or None where there is none."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def list_all(
        self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> list[Manifest]:
        """All objects that match, in pages."""
        items: list[Manifest] = []
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            page = await self._call("GET", kind.path(namespace), query)
            items += page.get("items") or []
            token = page.get("metadata", {}).get("continue")
            if not token:
                return items
            query["continue"] = token

    async def apply(
        self,
        kind: Kind,
        manifest: Mapping[str, Any],
        *,
        force: bool,
        subresource: str = "",
        manager: str = names.MANAGER,
    ) -> Manifest:
        """Server-side apply."""
        meta = manifest["metadata"]
        path = kind.path(meta.get("namespace"), meta["name"], subresource)
        query = {"fieldManager": manager, "force": "true" if force else "false", "fieldValidation": "Strict"}
        return await self._call("PATCH", path, query, manifest, "application/apply-patch+yaml")

    async def json_patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: list[Manifest],
        *,
        subresource: str = "",
        manager: str = names.MANAGER,
        dry_run: bool = False,
    ) -> Manifest:
        """JSON patch, which can test what it changes. With `dry_run` the server checks it and changes nothing."""
        path = kind.path(namespace, name, subresource)
        query = {"fieldManager": manager, "dryRun": "All" if dry_run else ""}
        return await self._call("PATCH", path, query, patch, "application/json-patch+json")

    async def merge_patch(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> Manifest:
        """JSON merge patch. With `metadata.uid` in it, it changes that very object only (409 otherwise)."""
        query = {"fieldManager": names.MANAGER}
        return await self._call("PATCH", kind.path(namespace, name), query, patch, "application/merge-patch+json")

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Manifest:
        """Create a new object; it never touches one that is there already (409 AlreadyExists)."""
        query = {"fieldManager": names.MANAGER, "fieldValidation": "Strict"}
        return await self._call("POST", kind.path(manifest["metadata"].get("namespace")), query, manifest)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        """Delete that very object. One that is gone is no error; one replaced by another is a conflict (409). `grace`:
        seconds that a pod's containers have to stop, where they are not the pod's own."""
        body: Manifest = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self._call("DELETE", kind.path(namespace, name), None, body)
        except KubeError as error:
            if error.status != 404:
                raise

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Manifest:
        call = f"{method} {path}"
        self.calls += 1
        headers: dict[str, str] = {"Content-Type": content_type, "Accept": "application/json"}
        url = self.api.configuration.host + path
        if query:
            url += "?" + urlencode({key: value for key, value in query.items() if value})
        try:
            await self.api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            response = await self.api.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=TIMEOUT_SECONDS
            )
            text = await response.read()
        except ApiException as error:
            raise KubeError(call, int(error.status or 0), *_reason(error.body, error.reason)) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise KubeError(call, 0, type(error).__name__, str(error) or "no answer") from error
        if not 200 <= response.status <= 299:
            wait = _seconds(response.headers.get("Retry-After"))
            raise KubeError(call, response.status, *_reason(text, response.reason), wait)
        return _object(call, text)


def _object(call: str, text: bytes) -> Manifest:
    """The answer's object. A proxy on the way may answer 200 with a page of its own."""
    try:
        result = json.loads(text) if text else {}
    except ValueError as error:
        raise KubeError(call, 0, "NotJSON", f"the answer is not JSON: {text[:80]!r}") from error
    if not isinstance(result, dict):
        raise KubeError(call, 0, "NotAnObject", f"the answer is not an object: {text[:80]!r}")
    return result


def _seconds(text: str | None) -> float:
    """A Retry-After header in seconds; its other form, a date, counts as none."""
    return min(float(text), MAX_RETRY_AFTER) if text and text.isascii() and text.isdigit() else 0.0


def _reason(body: Any, fallback: Any) -> tuple[str, str]:
    """The API's word and sentence out of a Status object."""
    try:
        status = json.loads(body)
        return str(status.get("reason") or fallback), str(status.get("message") or "")
    except (TypeError, ValueError, AttributeError):
        return str(fallback), str(body or "")[:500]


async def connect() -> Client:
    """A client with the pod's service account, or else by KUBECONFIG. Raises KubeError where there is neither."""
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException:
        try:
            await load_kube_config(client_configuration=configuration)
        except (ConfigException, OSError) as error:
            raise KubeError("connect", 0, "NoConfiguration", str(error)) from error
    return Client(configuration)
