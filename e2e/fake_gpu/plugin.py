"""The edges: the kubelet's gRPC calls, the API server, and the plugin's sockets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from kubernetes import client

from e2e.fake_gpu.claims import collision, groups_of
from e2e.fake_gpu.faults import Faults
from e2e.fake_gpu.gpu_config import Driver, Refused
from e2e.fake_gpu.health import Health, health_services
from e2e.fake_gpu.profiles import Gpu
from e2e.fake_gpu.slices import DRIVER, device_class, resource_slice, same_devices, slice_name
from e2e.fake_gpu.state import State

PROTOS = "e2e/fake_gpu/protos"
RESOURCES = ("resource.k8s.io", "v1")
LOG = logging.getLogger(__name__)

# Modules made from the proto files at run time: there is no generated code that could be of another version.
dra, dra_services = grpc.protos_and_services(f"{PROTOS}/dra.proto")
registration, registration_services = grpc.protos_and_services(f"{PROTOS}/registration.proto")
PluginService: Any = dra_services.DRAPluginServicer
RegistrationService: Any = registration_services.RegistrationServicer


@dataclass(frozen=True)
class Node:
    """Where the plugin works, and with which GPUs."""

    name: str
    gpus: list[Gpu]
    driver: Driver


class Api:
    """The few calls to the API server."""

    def __init__(self) -> None:
        self._objects = client.CustomObjectsApi()
        self._core = client.CoreV1Api()

    def publish(self, node: Node, faults: Faults) -> None:
        """Make the slice and, if it is missing, the class say what the node has, and what is wrong with it."""
        self._unless(
            409, lambda: self._objects.create_cluster_custom_object(*RESOURCES, "deviceclasses", device_class())
        )
        uid = self._core.read_node(node.name).metadata.uid
        name = slice_name(node.name)
        old = self._unless(404, lambda: self._objects.get_cluster_custom_object(*RESOURCES, "resourceslices", name))
        if not old:
            new = resource_slice(node.name, uid, node.gpus, 1, faults)
            self._objects.create_cluster_custom_object(*RESOURCES, "resourceslices", new)
            return
        new = resource_slice(node.name, uid, node.gpus, old["spec"]["pool"]["generation"] + 1, faults)
        if not same_devices(old, new):
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            self._objects.replace_cluster_custom_object(*RESOURCES, "resourceslices", name, new)

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._objects.get_namespaced_custom_object(
            *RESOURCES, namespace, "resourceclaims", name
        )
        return found

    def consumers(self, claim: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The pods for which the claim is reserved, as plain objects; one that is gone is left out."""
        namespace = claim["metadata"]["namespace"]
        pods = []
        for each in claim["status"].get("reservedFor") or []:
            if each["resource"] == "pods":
                read = lambda name=each["name"]: self._core.read_namespaced_pod(name, namespace)  # noqa: E731
                pods.append(self._unless(404, read))
        return [self._core.api_client.sanitize_for_serialization(pod) for pod in pods if pod]

    @staticmethod
    def _unless(status: int, call: Callable[[], Any]) -> Any:
        """The call's result, or None where the server answers with this status."""
        try:
            return call()
        except client.ApiException as error:
            if error.status == status:
                return None
            raise


class Plugin(PluginService):  # type: ignore[misc]  # made at run time
    """Prepares and unprepares claims, one at a time."""

    def __init__(self, node: Node, api: Api, state: State) -> None:
        self._node = node
        self._api = api
        self._state = state
        self._lock = threading.Lock()

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = dra.NodePrepareResourcesResponse()
        for claim in request.claims:
            with self._lock:
                answer.claims[claim.uid].CopyFrom(self._prepare(claim))
        return answer

    def NodeUnprepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].SetInParent()
            try:
                with self._lock:
                    self._state.unprepare(claim.uid)
            except Exception as error:  # the kubelet tries again; the plugin must go on for the other claims
                LOG.exception("unprepare of %s/%s", claim.namespace, claim.name)
                answer.claims[claim.uid].error = str(error)
        return answer

    def _prepare(self, claim: Any) -> Any:
        try:
            kept = self._state.prepared(claim.uid) or self._prepare_anew(claim)
        except Refused as refusal:
            self._state.unprepare(claim.uid)
            self._state.record(
                "refused", namespace=claim.namespace, name=claim.name, uid=claim.uid, reason=str(refusal)
            )
            return self._refusal(claim, str(refusal))
        except Exception as error:  # the kubelet tries again, and shows the reason as an event until it works
            LOG.exception("prepare of %s/%s", claim.namespace, claim.name)
            return self._refusal(claim, str(error))
        devices = [
            dra.Device(
                request_names=[each["request"]],
                pool_name=each["pool"],
                device_name=each["device"],
                cdi_device_ids=[each["cdi"]],
            )
            for each in kept["devices"]
        ]
        return dra.NodePrepareResourceResponse(devices=devices)

    def _prepare_anew(self, claim: Any) -> dict[str, Any]:
        found = self._api.claim(claim.namespace, claim.name)
        if found["metadata"]["uid"] != claim.uid:
            raise Refused("the claim was deleted and made anew")
        groups = groups_of(found, self._node.gpus, self._node.driver)
        self._state.check_free(claim.uid, groups)
        if complaint := collision(groups, self._api.consumers(found), claim.name):
            raise Refused(complaint)
        return self._state.prepare(claim.namespace, claim.name, claim.uid, groups)

    @staticmethod
    def _refusal(claim: Any, reason: str) -> Any:
        where = f"{claim.namespace}/{claim.name}:{claim.uid}"
        return dra.NodePrepareResourceResponse(
            error=f"error preparing devices for claim {where}: prepare devices failed: {reason}"
        )


class Registration(RegistrationService):  # type: ignore[misc]  # made at run time
    """Tells the kubelet where the plugin listens; `registered` is set once the kubelet has accepted it."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self.registered = threading.Event()

    def GetInfo(self, request: Any, context: grpc.ServicerContext) -> Any:
        return registration.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._socket),
            supported_versions=["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"],
        )

    def NotifyRegistrationStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        LOG.info("registered with the kubelet: %s %s", request.plugin_registered, request.error)
        if request.plugin_registered:
            self.registered.set()
        return registration.RegistrationStatusResponse()


@dataclass(frozen=True)
class Servers:
    """The plugin's two listening servers, and the registration that they wait for."""

    plugin: grpc.Server
    registry: grpc.Server
    registration: Registration


def serve(plugin: Plugin, health: Health, kubelet_root: Path) -> Servers:
    """Listen for the kubelet, then register. Replacing an earlier run's sockets tells the kubelet of a new start."""
    socket = kubelet_root / "plugins" / DRIVER / "dra.sock"
    registrar = kubelet_root / "plugins_registry" / f"{DRIVER}-reg.sock"
    for path in (socket, registrar):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    announcement = Registration(socket)
    plugin_server, registry = (grpc.server(futures.ThreadPoolExecutor(8)) for _ in range(2))
    servers = Servers(plugin_server, registry, announcement)
    dra_services.add_DRAPluginServicer_to_server(plugin, servers.plugin)
    health_services.add_DRAResourceHealthServicer_to_server(health, servers.plugin)
    registration_services.add_RegistrationServicer_to_server(announcement, servers.registry)
    for server, path in ((servers.plugin, socket), (servers.registry, registrar)):
        server.add_insecure_port(f"unix://{path}")
        server.start()
    return servers
