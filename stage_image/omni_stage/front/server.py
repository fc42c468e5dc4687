"""sglang-omni's OpenAI server, with its runner replaced and a gate around it."""

from __future__ import annotations

import os
from typing import Any

from sglang_omni.serve import launcher

from omni_stage import report
from omni_stage.contract import PodConfig
from omni_stage.engine import sockets
from omni_stage.engine.pipeline import build
from omni_stage.front.admission import Admission, Gate
from omni_stage.front.runner import PodRunner
from omni_stage.report import Phase, Report


def serve(config: PodConfig) -> None:
    """Blocks until SIGTERM or failure."""
    sockets.install()
    pipeline = build(config)
    admission = Admission()
    # The replica's Service and probes know one port: falling back to another would hide the server.
    os.environ["SGLANG_OMNI_STRICT_PORT"] = "1"
    create_app = launcher.create_app

    def create_gated_app(*arguments: Any, **named: Any) -> Any:
        app = create_app(*arguments, **named)
        app.add_middleware(Gate, admission=admission)
        return app

    launcher.create_app = create_gated_app
    launcher.MultiProcessPipelineRunner = lambda given: PodRunner(config, given, admission)
    report.send(Report(phase=Phase.WAITING, detail="waiting for the stages"))
    launcher.launch_server(pipeline, host="0.0.0.0", port=config.front.api_port, model_name=config.served_name)
