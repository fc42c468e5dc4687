"""Which of the catalogue's pipelines serves the model of a vLLM-Omni pipeline, and which stage is which.

The engines differ: vLLM-Omni's first stage often holds encoders that are stages of their own in the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omni_operator.catalogue import Pipeline, Variant, pipelines


@dataclass(frozen=True)
class Correspondence:
    """A pipeline of the catalogue, and its stages by vLLM-Omni's names."""

    pipeline: str
    stages: Mapping[str, str]
    variant: str | None = None
    colocated: tuple[str, str, str] | None = None
    """A variant to take where two of the file's stages share a GPU: (variant, first, second)."""


CORRESPONDENCES: Mapping[str, Correspondence] = {
    "qwen3_omni_moe": Correspondence(
        "qwen3_omni",
        {"thinker": "thinker", "talker": "talker_ar", "code2wav": "code2wav"},
        "speech",
        ("speech-colocated", "thinker", "talker"),
    ),
    "qwen3_omni_moe_thinker_only": Correspondence("qwen3_omni", {"thinker": "thinker"}, "text"),
    "qwen3_tts": Correspondence("qwen3_tts", {"qwen3_tts": "tts_engine", "code2wav": "vocoder"}),
    "fish_qwen3_omni": Correspondence(
        "fishaudio_s2_pro", {"fish_speech_slow_ar": "tts_engine", "dac_decoder": "vocoder"}
    ),
    "voxtral_tts": Correspondence("voxtral_tts", {"audio_generation": "tts_generation", "audio_tokenizer": "vocoder"}),
    "moss_tts_delay": Correspondence("moss_tts", {"moss_tts": "tts_engine", "moss_tts_codec": "vocoder"}),
    "moss_tts_local": Correspondence(
        "moss_tts_local", {"moss_tts_local": "tts_engine", "moss_tts_local_codec": "vocoder"}
    ),
    "nemotron_voicechat": Correspondence(
        "nemotron_voicechat", {"thinker": "thinker", "talker": "talker", "code2wav": "code2wav"}
    ),
    "personaplex": Correspondence("personaplex", {"personaplex": "lm", "code2wav": "code2wav"}),
    "minicpmo_4_5": Correspondence("minicpm_o", {"llm": "thinker", "tts": "talker", "code2wav": "code2wav"}, "speech"),
}
"""Only pipelines whose stages do the same work; qwen2_5_omni, for one, has no counterpart."""


def find(upstream: str | None) -> tuple[Correspondence, Pipeline] | None:
    """The correspondence of a vLLM-Omni pipeline, if the catalogue still has its counterpart."""
    row = CORRESPONDENCES.get(upstream or "")
    if row is None or row.pipeline not in pipelines():
        return None
    pipeline = pipelines()[row.pipeline]
    return (row, pipeline) if row.variant is None or row.variant in pipeline.variants else None


def variant_of(row: Correspondence, pipeline: Pipeline, slots: Mapping[str, tuple[int, ...]]) -> Variant:
    """The variant that fits where the stages are."""
    if row.colocated is not None:
        name, first, second = row.colocated
        if name in pipeline.variants and set(slots.get(first, ())) & set(slots.get(second, ())):
            return pipeline.variants[name]
    return pipeline.variants[row.variant or pipeline.default_variant]
