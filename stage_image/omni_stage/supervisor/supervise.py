"""The supervisor's life: start the engine, follow what it says, drain on SIGTERM, end with a code for the cause."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omni_stage.contract import HOLD_VARIABLE, ExitCode, PodConfig, Role, StageState
from omni_stage.report import Phase, Report
from omni_stage.supervisor import endings
from omni_stage.supervisor.attachment import Attachment
from omni_stage.supervisor.classify import Verdict, classify
from omni_stage.supervisor.engine_process import EngineProcess, adopt_orphans
from omni_stage.supervisor.status import Status

TICK_SECONDS = 0.5
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXTRA_GRACE_SECONDS = 3.0
"""After the drain time an engine gets so long to stop before its group is killed."""
SILENT_SECONDS = 360.0
"""An engine that was ready and says nothing for so long hangs for good, and is ended. Well above the 300 s after which
SGLang's own watchdog ends a scheduler that is stuck in a batch, and says where: only what that misses is ended here."""
DETACHED_SECONDS = 30.0
"""An engine whose MPS control daemon is gone for so long is ended. Time enough for it to fail by itself, which tells
more; too short for requests to miss it, since it is not ready meanwhile."""


@dataclass
class Deadlines:
    """Moments on the monotonic clock at which patience ends; None for no limit."""

    start: float | None = None
    drain: float | None = None
    silence: float | None = None
    """From the engine's first ready on, put off by every message."""
    detached: float | None = None
    """While the MPS control daemon of a running engine is gone."""


class Supervisor:
    """Runs in the main thread; one instance per process."""

    def __init__(
        self, config: PodConfig, status: Status, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.config, self.status = config, status
        self.command, self.environment = command, environment
        self.hold = environment.get(HOLD_VARIABLE) == StageState.LOADING.value
        self.engine: EngineProcess | None = None
        self.attachment = Attachment(config, environment)
        self.deadlines = Deadlines()
        self.asked_to_stop = False
        self.draining = False
        self.given_up: Verdict | None = None
        self._wakeups, self._wakeup = os.pipe()

    def run(self) -> ExitCode:
        """Until the engine has ended, or SIGTERM has been obeyed."""
        adopt_orphans()
        self._listen_for_signals()
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakeups, selectors.EVENT_READ)
            if self.hold:
                self.status.update(state=StageState.LOADING, detail=f"held at loading by {HOLD_VARIABLE}")
            else:
                self.deadlines.start = time.monotonic() + self.config.startup_timeout_seconds
            while True:
                self._look_at_mps(selector)
                for key, _ in selector.select(TICK_SECONDS):
                    self._on_readable(selector, int(key.fd))
                if self.asked_to_stop:
                    self._drain()
                verdict = self._verdict()
                if verdict is not None:
                    return self._finish(verdict)
                self._mind_deadlines()

    def _listen_for_signals(self) -> None:
        for end in (self._wakeups, self._wakeup):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_stop_signal)
        # The image starts this process with SIGTERM blocked: the kernel would drop one that comes to PID 1 before it
        # has a handler, as when a container of a pod that is going restarts, and the whole grace period would pass.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _on_stop_signal(self, *_: object) -> None:
        """Only note it: a handler runs in the middle of anything, also where the status is locked."""
        self.asked_to_stop = True

    def _look_at_mps(self, selector: selectors.BaseSelector) -> None:
        """Start the engine as soon as what it needs is there; one whose daemon goes is not ready, and not for long."""
        found = self.attachment.look()
        obstacle = self.attachment.obstacle(found)
        known = self.status.get()
        if (known.mps, known.obstacle) != (found, obstacle):
            self.status.update(mps=found, obstacle=obstacle)
        if self.engine is None:
            if not (self.hold or self.asked_to_stop or obstacle):
                self._start_engine(selector)
        elif not obstacle:
            self.deadlines.detached = None
        elif self.deadlines.detached is None:
            self.deadlines.detached = time.monotonic() + DETACHED_SECONDS

    def _start_engine(self, selector: selectors.BaseSelector) -> None:
        self.attachment.engine_starts()
        self.engine = EngineProcess(self.command, self.environment)
        selector.register(self.engine.report_fd, selectors.EVENT_READ)
        selector.register(self.engine.error_fd, selectors.EVENT_READ)
        now = self.status.clock()
        self.status.update(state=StageState.LOADING, engine_pid=self.engine.pid, engine_started=now)

    def _on_readable(self, selector: selectors.BaseSelector, fd: int) -> None:
        if fd == self._wakeups:
            with contextlib.suppress(BlockingIOError):
                os.read(fd, 4096)
            return
        assert self.engine is not None
        if fd == self.engine.error_fd:
            self.engine.copy_errors()
        else:
            for message in self.engine.read_reports():
                self._on_report(message)
        if fd in self.engine.closed:
            selector.unregister(fd)

    def _engine_is_gone(self) -> bool:
        assert self.engine is not None
        self.engine.reap()
        return self.engine.status is not None

    def _on_report(self, message: Report) -> None:
        now = self.status.clock()
        changes: dict[str, object] = {"heard": now}
        if message.memory_bytes is not None:
            changes["engine_memory_bytes"] = message.memory_bytes
        if message.gauges:
            changes["gauges"] = message.gauges
        if message.phase is not None and not self.draining:
            ready = message.phase is Phase.READY
            changes["state"] = StageState.READY if ready else StageState.LOADING
            changes["detail"] = message.detail
            if message.phase is not Phase.LOADING:
                self.deadlines.start = None
            before = self.status.get()
            if ready and before.ready_after is None and before.engine_started is not None:
                changes["ready_after"] = now - before.engine_started
        self.status.update(**changes)
        if self.status.get().ready_after is not None and not self.draining:
            self.deadlines.silence = time.monotonic() + SILENT_SECONDS

    def _drain(self) -> None:
        """Once: not ready any more, and the engine finishes what it has."""
        if self.draining:
            return
        self.draining = True
        self.status.update(state=StageState.DRAINING, detail="asked to stop")
        self.deadlines = Deadlines()
        self.deadlines.drain = time.monotonic() + self.config.drain_timeout_seconds + EXTRA_GRACE_SECONDS
        if self.engine is not None:
            self.engine.ask_to_stop()

    def _mind_deadlines(self) -> None:
        ends, now = self.deadlines, time.monotonic()
        obstacle = self.status.get().obstacle
        if ends.start is not None and now > ends.start:
            limit = self.config.startup_timeout_seconds
            why = f": {obstacle}" if obstacle else ""
            self.given_up = Verdict(ExitCode.START_TIMEOUT, f"the engine was not ready within {limit} s{why}")
        elif ends.detached is not None and now > ends.detached:
            self.given_up = Verdict(ExitCode.CUDA_FAULT, f"{obstacle}, for {DETACHED_SECONDS:.0f} s")
        elif ends.silence is not None and now > ends.silence:
            reason = f"the engine hangs: it was ready, and has said nothing for {SILENT_SECONDS:.0f} s"
            self.given_up = Verdict(ExitCode.ENGINE_LOST, reason)
        elif ends.drain is None or now <= ends.drain:
            return
        if self.engine is not None:
            self.engine.end_all()

    def _verdict(self) -> Verdict | None:
        """How this container ends, once that is known."""
        if self.engine is not None:
            if not self._engine_is_gone():
                return None
            self.engine.end_all()
        if self.draining:
            return Verdict(ExitCode.DRAINED, "stopped as asked")
        if self.given_up is not None or self.engine is None:
            return self.given_up
        return classify(self.engine.ending())

    def _finish(self, verdict: Verdict) -> ExitCode:
        if verdict.code is not ExitCode.DRAINED:
            self.status.update(state=StageState.FAILED, detail=verdict.reason)
        endings.write(verdict, self.status.clock())
        return verdict.code


def engine_command(config: PodConfig, interpreter: str, path: str) -> list[str]:
    """How the engine process of this pod is started: by the file again, which it reads for itself."""
    module = "omni_stage.front" if config.role is Role.FRONT else "omni_stage.engine"
    return [interpreter, "-m", module, path]
