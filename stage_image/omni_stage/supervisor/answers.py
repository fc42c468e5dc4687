"""The bodies of the supervisor's answers: pure functions of what it knows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from omni_stage.contract import Device, ExitCode, PodConfig, Role, StageConfig, StageState
from omni_stage.supervisor.endings import LastExit
from omni_stage.supervisor.status import Snapshot


@dataclass(frozen=True)
class Facts:
    """Everything an answer may tell, gathered by the caller."""

    config: PodConfig
    instance: str
    snapshot: Snapshot
    now: float
    engine_resident_bytes: int
    own_resident_bytes: int
    devices: list[str]
    last_exit: LastExit | None

    @property
    def memory_bytes(self) -> int:
        """Measured memory: of the GPUs where the engine tells it, of the host otherwise."""
        told = self.snapshot.engine_memory_bytes
        return self.engine_resident_bytes if told is None or self.config.device is Device.CPU else told

    @property
    def memory_kind(self) -> str:
        """What `memory_bytes` measures: `resident` host memory, or what `torch` holds on its GPUs."""
        told = self.snapshot.engine_memory_bytes
        return "resident" if told is None or self.config.device is Device.CPU else "torch"


def own_stages(config: PodConfig) -> list[StageConfig]:
    """The stages that this container runs; none in the front."""
    return [s for s in config.stages if config.role is Role.STAGE and s.process == config.process]


def timestamp(seconds: float) -> str:
    """RFC 3339, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def readiness(snapshot: Snapshot, instance: str, now: float) -> dict[str, Any]:
    """Body of /readyz."""
    ready = snapshot.is_ready(now)
    detail = snapshot.obstacle or snapshot.detail
    if snapshot.is_silent(now) and not snapshot.obstacle:
        detail = f"the engine has said nothing for {now - (snapshot.heard or snapshot.since):.0f} s"
    return {"ready": ready, "state": snapshot.state.value, "detail": detail, "instance": instance}


def stage(facts: Facts) -> dict[str, Any]:
    """Body of /stage."""
    config, snapshot, last = facts.config, facts.snapshot, facts.last_exit
    return {
        "model": config.name,
        "namespace": config.namespace,
        "replica": config.replica,
        "role": config.role.value,
        "process": config.process,
        "stages": [s.name for s in own_stages(config)],
        **readiness(snapshot, facts.instance, facts.now),
        "silent": snapshot.is_silent(facts.now),
        "since": timestamp(snapshot.since),
        "ready_after_seconds": snapshot.ready_after,
        "device": config.device.value,
        "memory_bytes": facts.memory_bytes,
        "memory_kind": facts.memory_kind,
        "supervisor_memory_bytes": facts.own_resident_bytes,
        "device_uuids": facts.devices,
        "mps": asdict(snapshot.mps),
        "gauges": dict(snapshot.gauges),
        "last_exit": None if last is None else {**asdict(last), "at": timestamp(last.at)},
    }


def metrics(facts: Facts) -> str:
    """Body of /metrics, in the Prometheus text format."""
    config, snapshot = facts.config, facts.snapshot
    labels = f'model="{config.name}",role="{config.role.value}",process="{config.process}"'
    lines: list[str] = []

    def gauge(name: str, help_text: str, values: dict[str, float]) -> None:
        lines.append(f"# HELP {name} {help_text}")
        lines.append(f"# TYPE {name} gauge")
        lines.extend(f"{name}{{{labels}{extra}}} {value:.15g}" for extra, value in values.items())

    gauge("omni_stage_ready", "1 where /readyz answers 200.", {"": float(snapshot.is_ready(facts.now))})
    states = {f',state="{s.value}"': float(s is snapshot.state) for s in StageState}
    gauge("omni_stage_state", "1 for the state that holds.", states)
    kind = f',kind="{facts.memory_kind}"'
    gauge("omni_stage_memory_bytes", "Measured memory of the engine.", {kind: facts.memory_bytes})
    budgets = {f',stage="{s.name}"': float(s.memory_bytes) for s in own_stages(config) if s.memory_bytes}
    gauge("omni_stage_memory_budget_bytes", "Declared memory of a stage on each of its GPUs.", budgets)
    gauge("omni_stage_supervisor_memory_bytes", "Resident memory of the supervisor.", {"": facts.own_resident_bytes})
    gauge("omni_stage_mps_attached", "1 where the container is an MPS client.", {"": float(snapshot.mps.attached)})
    if snapshot.ready_after is not None:
        gauge("omni_stage_start_seconds", "From the engine's start to its first ready.", {"": snapshot.ready_after})
    if facts.last_exit is not None:
        cause = f',cause="{ExitCode(facts.last_exit.code).name.lower()}"'
        gauge("omni_stage_last_exit_code", "How the container before this one ended.", {cause: facts.last_exit.code})
    for name, value in sorted(snapshot.gauges.items()):
        gauge(f"omni_stage_{name}", "Reported by the engine.", {"": value})
    return "\n".join(lines) + "\n"
