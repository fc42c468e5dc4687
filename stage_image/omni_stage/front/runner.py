"""Takes the place of sglang-omni's runner: the same coordinator, with stages that other pods start and stop."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from sglang_omni.config import PipelineConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.mp_runner import resolve_coordinator_max_in_flight
from sglang_omni.proto import CompleteMessage
from sglang_omni.utils.imports import import_string

from omni_stage.contract import PodConfig
from omni_stage.engine import specs
from omni_stage.front.admission import Admission
from omni_stage.front.pulse import pulse
from omni_stage.front.watch import Event, Pod, Watch, pods_of

logger = logging.getLogger(__name__)


class PodRunner:
    """What sglang-omni's server needs of a runner."""

    def __init__(self, config: PodConfig, pipeline: PipelineConfig, admission: Admission) -> None:
        self.config, self.pipeline, self.admission = config, pipeline, admission
        self.plan = specs.plan(config, pipeline)
        self.coordinator = make_coordinator(pipeline, self.plan)
        self.watch = Watch(pods_of(config.stages), self._on_event)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: asyncio.Future[None] | None = None

    async def start(self, timeout: float = 0.0) -> None:  # noqa: ASYNC109  # sglang-omni's signature
        """Returns once every stage is ready. Without a limit: pods that never come are the operator's affair."""
        self._failed = asyncio.get_running_loop().create_future()
        await self.coordinator.start()
        self._spawn(self.coordinator.run_completion_loop())
        self._spawn(self.watch.run())
        self._spawn(pulse(self.config, self.coordinator, self.watch, self.admission))
        await self.watch.all_ready.wait()

    def _spawn(self, work: Any) -> None:
        """A task without which the front is of no use: its failure is the front's."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() and self._failed and not self._failed.done():
            self._failed.set_exception(task.exception() or RuntimeError())

    def _on_event(self, pod: Pod, event: Event) -> None:
        names = ", ".join(pod.stages)
        if event is not Event.CAME:
            reason = f"stage {names} was lost ({pod.detail})"
            logger.warning("%s; ending what is in flight", reason)
            self.admission.close(reason)
            self._spawn(self.end_requests(reason))
        if event is not Event.LOST:
            logger.info("stage %s is ready", names)
            for name in pod.stages:
                self.coordinator.register_stage(name, self.plan.endpoints[f"stage_{name}"])
        missing = self.watch.missing()
        if missing:
            self.admission.keep_closed(missing)
        else:
            self.admission.open()

    async def end_requests(self, reason: str) -> None:
        """Fail every request in flight, and abort it in the stages that are left."""
        for request_id in list(self.coordinator.requests):
            message = CompleteMessage(request_id=request_id, from_stage="coordinator", success=False, error=reason)
            await self.coordinator.handle_completion(message)

    @property
    def prep(self) -> Any:
        """sglang-omni's plan, which its server logs."""
        return self.plan.prep

    @property
    def stage_control_endpoints(self) -> dict[str, str]:
        """For its profiler."""
        return {stage.name: self.plan.endpoints[f"stage_{stage.name}"] for stage in self.config.stages}

    @property
    def stage_http_routes(self) -> list[Any]:
        """None: `pipeline` refuses pipelines that have any."""
        return []

    async def wait_failed(self) -> None:
        """Raises what made the front useless."""
        assert self._failed is not None
        await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """Stop coordinating. The stages are other pods' affair."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.coordinator.stop()


def make_coordinator(pipeline: PipelineConfig, plan: specs.Plan) -> Coordinator:
    """As sglang-omni's runner makes it, listening on every interface."""
    prep, graph = plan.prep, pipeline.session_graph()
    resolver = pipeline.terminal_stages_fn
    return Coordinator(
        completion_endpoint=specs.bind_address(plan.endpoints["completion"]),
        abort_endpoint=specs.bind_address(plan.endpoints["abort"]),
        entry_stage=prep.entry_stage,
        terminal_stages=pipeline.terminal_stages or None,
        terminal_stages_resolver=import_string(resolver) if resolver else None,
        replica_topology=prep.replica_topology,
        logical_process_plan=prep.logical_process_plan,
        max_in_flight=resolve_coordinator_max_in_flight(pipeline, logical_process_plan=prep.logical_process_plan),
        max_total_backlog_bytes=pipeline.stream_delivery.max_total_backlog_bytes,
        session_route=pipeline.session_route if graph is None else None,
        session_graph=graph,
        max_output_lead_ms=pipeline.max_output_lead_ms,
    )
