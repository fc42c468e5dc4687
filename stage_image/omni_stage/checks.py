"""Whether a pod's configuration makes sense as a whole: what types alone cannot say.

Pure. Standard library only: the supervisor runs these before it starts anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

from omni_stage.contract import ConfigError, PodConfig, Role, StageConfig


def check(config: PodConfig) -> None:
    """Raise ConfigError with the first problem's path."""
    for problem in problems(config):
        raise ConfigError(problem)


def problems(config: PodConfig) -> Iterator[str]:
    """Each problem as `path: what is wrong`."""
    if not config.stages:
        yield "stages: a pipeline has at least one"
    for name, times in Counter(s.name for s in config.stages).items():
        if times > 1:
            yield f"stages: {name!r} comes {times} times"
    processes = {s.process for s in config.stages}
    if config.role is Role.STAGE and config.process not in processes:
        yield f"process: {config.process!r} is none of {', '.join(sorted(processes))}"
    for index, stage in enumerate(config.stages):
        for problem in stage_problems(stage):
            yield f"stages[{index}].{problem}"
    yield from address_problems(config)
    for name in ("startup_timeout_seconds", "drain_timeout_seconds"):
        if getattr(config, name) < 1:
            yield f"{name}: at least 1 is needed"


def stage_problems(stage: StageConfig) -> Iterator[str]:
    """Problems of one stage, without its place in the list."""
    if len(set(stage.slots)) != len(stage.slots) or any(slot < 0 for slot in stage.slots):
        yield f"slots: {list(stage.slots)} are not different numbers from 0"
    if stage.tensor_parallel_size != max(1, len(stage.slots)):
        yield f"tensor_parallel_size: {stage.tensor_parallel_size} does not match the slots {list(stage.slots)}"
    if stage.memory_share is not None and not is_share(stage.memory_share):
        yield f"memory_share: {stage.memory_share!r} is no decimal number above 0 and up to 1"
    for name in ("memory_bytes", "kv_cache_bytes"):
        value = getattr(stage, name)
        if value is not None and value < 1:
            yield f"{name}: {value} is not above 0"
    if stage.headroom_bytes < 0:
        yield f"headroom_bytes: {stage.headroom_bytes} is below 0"
    if stage.memory_bytes and stage.kv_cache_bytes and stage.kv_cache_bytes > stage.memory_bytes:
        yield f"kv_cache_bytes: {stage.kv_cache_bytes} is more than memory_bytes, {stage.memory_bytes}"


def is_share(text: str) -> bool:
    """Whether the text is a decimal number in (0, 1]."""
    try:
        return 0 < Decimal(text) <= 1
    except InvalidOperation:
        return False


def address_problems(config: PodConfig) -> Iterator[str]:
    """Two listeners of one port at one address, or a port that is none."""
    listeners: Counter[tuple[str, int]] = Counter()
    front = config.front
    listeners.update((front.host, p) for p in (front.api_port, front.completion_port, front.abort_port))
    listeners[front.host, front.supervisor_port] += 1
    for process in {s.process for s in config.stages}:
        stages = [s for s in config.stages if s.process == process]
        for stage in stages:
            listeners.update((stage.host, p) for p in (stage.control_port, stage.rank_port, stage.relay_port))
        for address in {(s.host, s.supervisor_port) for s in stages}:
            listeners[address] += 1
    for (host, port), times in sorted(listeners.items()):
        if not 0 < port < 65536:
            yield f"ports: {port} at {host} is no TCP port"
        if times > 1:
            yield f"ports: {times} listeners share port {port} at {host}"
