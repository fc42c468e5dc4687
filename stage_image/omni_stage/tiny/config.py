"""The tiny pipeline, declared as sglang-omni's own pipelines are."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from sglang_omni.config import EngineArgs, EngineStageConfig, PipelineConfig, StageConfig

HERE = "omni_stage.tiny"


def tiny_stages() -> list[StageConfig]:
    """One process each; thinker and talker share slot 0."""
    return [
        StageConfig(
            name="preprocessing",
            process="preprocessing",
            factory_path=f"{HERE}.text_stages.create_preprocessing",
            next="thinker",
        ),
        EngineStageConfig(
            name="thinker",
            process="thinker",
            factory_path=f"{HERE}.thinker.create_thinker",
            engine=EngineArgs(max_running_requests=16, max_total_tokens=16384),
            gpu=0,
            next="talker",
            stream_to=["talker"],
        ),
        StageConfig(
            name="talker",
            process="talker",
            factory_path=f"{HERE}.talker.create_talker",
            gpu=0,
            next="decode",
            stream_to=["decode"],
            can_accept_stream_before_payload=True,
        ),
        StageConfig(
            name="decode",
            process="decode",
            factory_path=f"{HERE}.text_stages.create_decode",
            terminal=True,
            can_accept_stream_before_payload=True,
        ),
    ]


class TinyOmniPipelineConfig(PipelineConfig):  # type: ignore[misc]
    """preprocessing -> thinker -> talker -> decode; text in, text out, streamed all the way."""

    architecture: ClassVar[str] = "TinyOmniForConditionalGeneration"
    stage_config_types: ClassVar[dict[str, type[StageConfig]]] = {"thinker": EngineStageConfig}

    stages: list[StageConfig] = Field(default_factory=tiny_stages)

    @classmethod
    def mem_fraction_role_to_stage(cls) -> dict[str, str]:
        """The stage whose share holds a KV cache."""
        return {"thinker": "thinker"}

    @classmethod
    def generation_sglang_role_to_stage(cls) -> dict[str, str]:
        """The stage that SGLang's settings reach."""
        return {"generation": "thinker"}


EntryClass = TinyOmniPipelineConfig
