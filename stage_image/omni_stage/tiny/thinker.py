"""The tiny pipeline's thinker: SGLang's model runner, KV cache and scheduler in this process, over the tiny Llama.

It is built by sglang-omni's own builder of autoregressive stages, as the thinkers of real pipelines are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.utils.hf_transformers_utils import get_tokenizer
from sglang_omni.model_runner.base import ModelRunner
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.engine_factory import SGLangGenerationEngineBuilder
from sglang_omni.scheduling.message import OutgoingMessage
from sglang_omni.scheduling.sglang_backend.request_data import SGLangARRequestData

from omni_stage.tiny import trail

MAX_NEW_TOKENS = 64


class TinyThinkerBuilder(SGLangGenerationEngineBuilder):  # type: ignore[misc]
    """Fills in what sglang-omni's builder leaves to a model."""

    model_name = "tiny-omni thinker"
    context_length = 4096

    def pre_infra_setup(self, checkpoint_dir: str) -> None:
        """Load the tokenizer: it normalises stop conditions."""
        self.tokenizer = get_tokenizer(checkpoint_dir)

    def generation_defaults(self, *, dtype: str) -> dict[str, object]:
        """Defaults that the user's engine arguments override."""
        return {"max_running_requests": 16, "dtype": dtype, "disable_cuda_graph": True, "sampling_backend": "pytorch"}

    def make_model_runner(self, model_worker: Any, output_proc: Any) -> ModelRunner:
        """sglang-omni's plain one."""
        return ModelRunner(model_worker, output_proc)

    def make_adapters(self, model: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """From a stage payload to SGLang's request, and back."""
        vocabulary_size = int(model.config.vocab_size)
        return lambda payload: build_request(payload, self.tokenizer, vocabulary_size), build_result

    def extra_scheduler_kwargs(self) -> dict[str, Any]:
        """Stream each token to the talker as it comes."""
        return {"stream_output_builder": build_stream_output, "enable_async_decode": False}


def build_request(payload: StagePayload, tokenizer: Any, vocabulary_size: int) -> SGLangARRequestData:
    """SGLang's request for one payload of `preprocessing`."""
    params = payload.request.params or {}
    sampling = SamplingParams(
        max_new_tokens=params.get("max_new_tokens") or MAX_NEW_TOKENS,
        temperature=params.get("temperature", 0.0),
        top_p=params.get("top_p", 1.0),
        stop=params.get("stop") or [],
        ignore_eos=bool(params.get("ignore_eos", False)),
    )
    sampling.normalize(tokenizer)
    sampling.verify(vocabulary_size)
    input_ids: torch.Tensor = payload.data["input_ids"]
    request = Req(
        rid=payload.request_id,
        origin_input_text="",
        origin_input_ids=input_ids.tolist(),
        sampling_params=sampling,
        eos_token_ids={tokenizer.eos_token_id},
        vocab_size=vocabulary_size,
    )
    request.tokenizer = tokenizer
    return SGLangARRequestData(
        input_ids=input_ids,
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        output_ids=request.output_ids,
        req=request,
        stage_payload=payload,
    )


def build_result(data: SGLangARRequestData) -> StagePayload:
    """What goes on to the talker once the answer is whole."""
    payload = data.stage_payload
    payload.data = {
        trail.KEY: trail.passed(payload.data[trail.KEY], "thinker"),
        "prompt_tokens": int(data.input_ids.numel()),
        "output_ids": torch.tensor(list(data.output_ids), dtype=torch.int64),
        "finish_reason": data.finish_reason or "stop",
    }
    return payload


def build_stream_output(request_id: str, data: SGLangARRequestData, output: Any) -> list[OutgoingMessage]:
    """One token on its way to the talker, for a caller that wants a stream."""
    params = data.stage_payload.request.params or {}
    if not params.get("stream") or output.data is None or data.req.inflight_middle_chunks > 0:
        return []
    return [
        OutgoingMessage(
            request_id=request_id,
            type="stream",
            data=torch.tensor([int(output.data)], dtype=torch.int64),
            target="talker",
            metadata={trail.KEY: trail.passed(data.stage_payload.data[trail.KEY], "thinker")},
        )
    ]


def create_thinker(
    model_path: str,
    *,
    gpu_id: int | None = None,
    device: str | None = None,
    dtype: str = "bfloat16",
    server_args_overrides: Mapping[str, object] | None = None,
    total_gpu_memory_fraction: float | None = None,
) -> Any:
    """Stage factory."""
    return TinyThinkerBuilder().build(
        model_path,
        device=device,
        gpu_id=gpu_id,
        dtype=dtype,
        server_args_overrides=server_args_overrides,
        total_gpu_memory_fraction=total_gpu_memory_fraction,
    )
