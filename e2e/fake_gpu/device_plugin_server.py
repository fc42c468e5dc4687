"""The device plugin's edges: the kubelet's gRPC calls, its registration, and the node's labels."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import grpc
from kubernetes import client

from e2e.fake_gpu.device_plugin import (
    LABEL_PREFIX,
    MPS,
    DevicePluginConfig,
    Invalid,
    allocate,
    check,
    daemon_of,
    device_ids,
    labels,
    preferred,
    uuid_of,
)
from e2e.fake_gpu.faults import Faults
from e2e.fake_gpu.profiles import Gpu
from e2e.fake_gpu.slices import DRIVER, slice_name
from e2e.fake_gpu.state import State, make_daemon

# Modules made from the proto file at run time, as the DRA plugin's.
api, services = grpc.protos_and_services("e2e/fake_gpu/protos/deviceplugin.proto")
PluginService: Any = services.DevicePluginServicer
LOG = logging.getLogger(__name__)
FOLDER = Path("/var/lib/kubelet/device-plugins")
"""The kubelet knows no other, whatever its root is."""
KUBELET_SOCKET = FOLDER / "kubelet.sock"
LOOK_SECONDS = 0.3


class DevicePlugin(PluginService):  # type: ignore[misc]  # made at run time
    """Serves the kubelet until `ended` is set."""

    def __init__(self, config: DevicePluginConfig, gpus: list[Gpu], state: State, faults: Callable[[], Faults]) -> None:
        self._config = config
        self._gpus = gpus
        self._state = state
        self._faults = faults
        self._devices = device_ids(config, gpus)
        self.ended = threading.Event()

    def GetDevicePluginOptions(self, request: Any, context: grpc.ServicerContext) -> Any:
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    def PreStartContainer(self, request: Any, context: grpc.ServicerContext) -> Any:
        return api.PreStartContainerResponse()

    def ListAndWatch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """All devices, and again whenever the health of one changed."""
        told = None
        while not self.ended.is_set() and context.is_active():
            faults, by_uuid = self._faults(), {gpu.uuid: gpu.name for gpu in self._gpus}
            ill = {uuid for uuid, name in by_uuid.items() if not faults.healthy(name)}
            if ill != told:
                health = {each: "Unhealthy" if uuid_of(each) in ill else "Healthy" for each in self._devices}
                yield api.ListAndWatchResponse(devices=[api.Device(ID=i, health=h) for i, h in health.items()])
                told = ill
            self.ended.wait(LOOK_SECONDS)

    def GetPreferredAllocation(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = api.PreferredAllocationResponse()
        for each in request.container_requests:
            free, required = list(each.available_deviceIDs), list(each.must_include_deviceIDs)
            try:
                chosen = preferred(self._config, self._devices, free, required, each.allocation_size)
            except Invalid as problem:
                context.abort(grpc.StatusCode.UNKNOWN, f"error getting list of preferred allocation devices: {problem}")
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    def Allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = api.AllocateResponse()
        for each in request.container_requests:
            ids = list(each.devices_ids)
            try:
                check(self._config, self._devices, ids)
            except Invalid as problem:
                self._state.record("refused", devices=ids, reason=str(problem))
                context.abort(grpc.StatusCode.UNKNOWN, str(problem))
            given = allocate(
                self._config, self._gpus, ids, self._state.markers, self._state.memory, self._state.mps_root
            )
            self._state.record("allocated", devices=ids)
            answer.container_responses.add(
                envs=given.environment,
                mounts=[
                    api.Mount(container_path=mount.target, host_path=str(mount.source), read_only=mount.read_only)
                    for mount in given.mounts
                ],
            )
        return answer


def run(node: str, config: DevicePluginConfig, gpus: list[Gpu], state: State, faults: Callable[[], Faults]) -> NoReturn:
    """Offer the GPUs for ever: the kubelet forgets every plugin when it starts, so each start is registered with."""
    core = client.CoreV1Api()
    start_daemon(config, gpus, state)
    label(core, node, labels(config, gpus))
    delete_slice(node)
    while True:
        _offer_to_kubelet(core, node, config, gpus, DevicePlugin(config, gpus, state, faults), state)


def _offer_to_kubelet(
    core: client.CoreV1Api,
    node: str,
    config: DevicePluginConfig,
    gpus: list[Gpu],
    plugin: DevicePlugin,
    state: State,
) -> None:
    """Serve one run of the kubelet; returns when another one listens."""
    socket = FOLDER / f"nvidia-{config.resource.rpartition('/')[2]}.sock"
    served = _serve(plugin, socket)
    try:
        kubelet = _register(config, socket)
        wanted = len(device_ids(config, gpus))
        _wait_until(lambda: _allocatable(core, node, config.resource) == wanted)
        state.offer(gpus)
        LOG.info("offering %d of %s on %s", wanted, config.resource, node)
        _wait_until(lambda: _inode(KUBELET_SOCKET) != kubelet or not socket.exists())
    finally:
        served.stop()


def start_daemon(config: DevicePluginConfig, gpus: list[Gpu], state: State) -> None:
    """The resource's MPS control daemon, where the configuration has one; an earlier configuration's goes."""
    for old in (state.mps_root / "nvidia.com").glob("*"):
        shutil.rmtree(old)
    if config.sharing == MPS and gpus:
        make_daemon(state.mps_root / config.resource, state.mps_root / "shm", daemon_of(config, gpus))


def label(core: client.CoreV1Api, node: str, wanted: dict[str, str]) -> None:
    """Make these the node's only labels under `nvidia.com/`."""
    present = core.read_node(node).metadata.labels or {}
    stale = [key for key in present if key.startswith(LABEL_PREFIX) and key not in wanted]
    core.patch_node(node, {"metadata": {"labels": {**dict.fromkeys(stale), **wanted}}})


def delete_slice(node: str) -> None:
    """A node offers its GPUs in one way: through the device plugin or through DRA."""
    try:
        client.CustomObjectsApi().delete_cluster_custom_object(
            "resource.k8s.io", "v1", "resourceslices", slice_name(node)
        )
    except client.ApiException as error:
        if error.status != 404:
            raise
    LOG.debug("no slice of %s is left on %s", DRIVER, node)


@dataclass(frozen=True)
class _Served:
    plugin: DevicePlugin
    server: grpc.Server

    def stop(self) -> None:
        self.plugin.ended.set()
        self.server.stop(grace=None).wait()


def _serve(plugin: DevicePlugin, socket: Path) -> _Served:
    socket.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    services.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    return _Served(plugin, server)


def _register(config: DevicePluginConfig, socket: Path) -> int | None:
    """Tell the kubelet, once it listens; returns which of its sockets that was."""
    _wait_until(KUBELET_SOCKET.exists)
    kubelet = _inode(KUBELET_SOCKET)
    request = api.RegisterRequest(
        version="v1beta1",
        endpoint=socket.name,
        resource_name=config.resource,
        options=api.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    with grpc.insecure_channel(f"unix://{KUBELET_SOCKET}") as channel:
        services.RegistrationStub(channel).Register(request, timeout=10, wait_for_ready=True)
    return kubelet


def _allocatable(core: client.CoreV1Api, node: str, resource: str) -> int:
    return int((core.read_node(node).status.allocatable or {}).get(resource, 0))


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _wait_until(there: Callable[[], bool]) -> None:
    while not there():
        time.sleep(LOOK_SECONDS)
