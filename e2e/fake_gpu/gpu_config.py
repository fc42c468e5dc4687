"""PURE: the opaque `GpuConfig` of `resource.nvidia.com/v1beta1`, decoded and judged as NVIDIA's driver does.

Follows `api/nvidia.com/resource/v1beta1/{api,gpuconfig,sharing,validate}.go`: unknown fields, strategies whose gate is
off and values out of range are refused, with the driver's words, since the operator must recognise them in events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

API_VERSION = "resource.nvidia.com/v1beta1"
OTHER_KINDS = ("MigDeviceConfig", "VfioDeviceConfig")
INTERVALS = ("Default", "Short", "Medium", "Long")
TIME_SLICING, MPS = "TimeSlicing", "MPS"
GATE_OF = {TIME_SLICING: "TimeSlicingSettings", MPS: "MPSSupport"}
GATES = ("MPSSupport", "TimeSlicingSettings", "DynamicMIG", "ConsumableShares")
QUANTITY = re.compile(r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$")
SUFFIXES = {
    suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)
}
SUFFIXES |= {
    suffix: Decimal(10) ** power for suffix, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
}


class Refused(Exception):
    """The driver's reason not to prepare a claim."""


@dataclass(frozen=True)
class Driver:
    """How the driver was started: its gates, all off unless set, and the release whose words it uses."""

    gates: Mapping[str, bool] = field(default_factory=dict)
    release: str = "25.8"

    def on(self, gate: str) -> bool:
        return self.gates.get(gate, False)


@dataclass(frozen=True)
class Mps:
    """The settings of an MPS control daemon. Limits are in bytes."""

    active_threads: int | None = None
    memory_limit: int | None = None
    device_limits: Mapping[str, int] = field(default_factory=dict)
    multi_user: bool = False


@dataclass(frozen=True)
class Sharing:
    """How the GPUs of one config entry are shared; no strategy at all is plain time-slicing."""

    strategy: str = ""
    interval: str | None = None
    mps: Mps | None = None


def decode(parameters: Mapping[str, Any]) -> Sharing | None:
    """Decode opaque parameters strictly; None for a kind that configures other devices than whole GPUs."""
    version, kind = parameters.get("apiVersion", ""), parameters.get("kind", "")
    if version != API_VERSION or kind not in ("GpuConfig", *OTHER_KINDS):
        raise Refused(f'error decoding config parameters: no kind "{kind}" is registered for version "{version}"')
    if kind in OTHER_KINDS:
        return None
    config = _Fields(parameters, "", {"apiVersion": str, "kind": str, "sharing": dict})
    sharing = config.get("sharing")
    return Sharing() if sharing is None else _sharing(sharing)


def judge(sharing: Sharing, driver: Driver, requests: Sequence[str], claim_uid: str) -> None:
    """Raise Refused where the driver would, in its order: validate first, then apply."""
    if not sharing.strategy:
        return
    _judge_strategy(sharing.strategy, driver)
    if sharing.strategy == TIME_SLICING:
        interval = sharing.interval
        if interval is not None and interval not in INTERVALS:
            raise Refused(
                f"error validating GPU config: unknown time-slice interval: {interval}{_known(INTERVALS, driver)}"
            )
        if sharing.mps is not None:
            raise Refused(
                f"error applying config: error getting timeslice config for requests '[{' '.join(requests)}]' in claim "
                f"'{claim_uid}': cannot use MpsConfig with the 'TimeSlicing' strategy"
            )
        return
    threads = sharing.mps.active_threads if sharing.mps else None
    if threads is not None and not 0 <= threads <= 100:
        limit = "be negative" if threads < 0 else "be greater than 100"
        raise Refused(f"error validating GPU config: active thread percentage must not {limit}")
    if driver.on("ConsumableShares"):
        raise Refused("error applying config: MPS sharing is not supported when consumable shares is enabled")
    if driver.on("DynamicMIG"):
        raise Refused("error applying config: MPS is not yet supported when using featureGates.DynamicMIG=true")
    if sharing.interval is not None:
        raise Refused(
            "error applying config: error getting MPS configuration: cannot use TimeSlicingConfig with the 'MPS' "
            "strategy"
        )


def memory_limits(mps: Mps, uuids: Sequence[str]) -> dict[str, str]:
    """{uuid: limit} as the control daemon is told, in whole MiB (`16384M`); own limits are by uuid or index."""
    limits = {}
    if mps.memory_limit is not None:
        limits = {uuid: _megabytes(mps.memory_limit, "default value set too low") for uuid in uuids}
    for key, value in mps.device_limits.items():
        limits[_uuid(key, uuids)] = _megabytes(value, f"value set too low: {key}")
    return limits


def quantity(value: Any, path: str) -> int:
    """A Kubernetes quantity as a whole number, rounded up, as `Quantity.Value()` does."""
    text = str(value)
    found = QUANTITY.match(text)
    suffix = found.group(2) if found else ""
    exponent = re.fullmatch(r"[eE]([-+]?[0-9]+)", suffix)
    factor = (
        Decimal(10) ** int(exponent.group(1)) if exponent else SUFFIXES.get(suffix, Decimal(1) if not suffix else None)
    )
    if not found or factor is None or isinstance(value, bool) or found.group(1).count(".") > 1:
        raise Refused(
            f"error decoding config parameters: {path}: quantities must match the regular expression "
            f"'{QUANTITY.pattern}'"
        )
    exact = Decimal(found.group(1)) * factor
    return int(exact.to_integral_value(rounding="ROUND_CEILING"))


def _sharing(raw: Mapping[str, Any]) -> Sharing:
    fields = _Fields(raw, "sharing", {"strategy": str, "timeSlicingConfig": dict, "mpsConfig": dict})
    slicing, mps = fields.get("timeSlicingConfig"), fields.get("mpsConfig")
    interval = None
    if slicing is not None:
        # The driver follows a nil pointer where no interval is given; an empty one is refused with the same words.
        interval = _Fields(slicing, "sharing.timeSlicingConfig", {"interval": str}).get("interval") or ""
    return Sharing(fields.get("strategy") or "<none>", interval, None if mps is None else _mps(mps))


def _mps(raw: Mapping[str, Any]) -> Mps:
    path = "sharing.mpsConfig"
    known: dict[str, Any] = {
        "defaultActiveThreadPercentage": int,
        "defaultPinnedDeviceMemoryLimit": (str, int, float),
        "defaultPerDevicePinnedMemoryLimit": dict,
        "multiUser": bool,
    }
    fields = _Fields(raw, path, known)
    threads, limit = fields.get("defaultActiveThreadPercentage"), fields.get("defaultPinnedDeviceMemoryLimit")
    devices = fields.get("defaultPerDevicePinnedMemoryLimit") or {}
    return Mps(
        active_threads=threads,
        memory_limit=None if limit is None else quantity(limit, f"{path}.defaultPinnedDeviceMemoryLimit"),
        device_limits={key: quantity(value, f"{path}.{key}") for key, value in devices.items()},
        multi_user=bool(fields.get("multiUser")),
    )


class _Fields:
    """The fields of one object, refused at once if one is unknown or of the wrong type."""

    def __init__(self, raw: Mapping[str, Any], path: str, known: Mapping[str, Any]) -> None:
        prefix = f"{path}." if path else ""
        if unknown := [f'unknown field "{prefix}{name}"' for name in raw if name not in known]:
            raise Refused(f"error decoding config parameters: strict decoding error: {', '.join(unknown)}")
        for name, value in raw.items():
            right = isinstance(value, known[name]) and (known[name] is bool or not isinstance(value, bool))
            if value is not None and not right:
                kind = {str: "string", bool: "bool", dict: "object", list: "array"}.get(type(value), "number")
                raise Refused(
                    f"error decoding config parameters: json: cannot unmarshal {kind} into Go struct field "
                    f"{prefix}{name}"
                )
        self.get = raw.get


def _judge_strategy(strategy: str, driver: Driver) -> None:
    gate = GATE_OF.get(strategy)
    if gate and driver.on(gate):
        return
    shown = "" if strategy == "<none>" else strategy
    if gate and driver.release != "25.8":
        raise Refused(
            f'error validating GPU config: "{strategy}" is selected as the GPU sharing strategy, but the "{gate}" '
            "feature gate is not enabled"
        )
    known = "" if driver.release == "25.8" else f", supported GPU sharing strategies: {TIME_SLICING}, {MPS}"
    raise Refused(f"error validating GPU config: unknown GPU sharing strategy: {shown}{known}")


def _known(values: Sequence[str], driver: Driver) -> str:
    return "" if driver.release == "25.8" else f", supported time-slice intervals: {', '.join(values)}"


def _megabytes(value: int, complaint: str) -> str:
    if value < 1024 * 1024:
        raise Refused(f"error applying config: error starting MPS control daemon: invalid limit: {complaint}: {value}")
    return f"{value // (1024 * 1024)}M"


def _uuid(key: str, uuids: Sequence[str]) -> str:
    if key in uuids:
        return key
    problem = "error applying config: error starting MPS control daemon: invalid device"
    if not re.fullmatch(r"[+-]?[0-9]+", key):
        raise Refused(f"{problem}: unable to parse key as an integer: {key}")
    if not 0 <= int(key) < len(uuids):
        raise Refused(f"{problem}: invalid device index: {key}")
    return uuids[int(key)]
