"""The tiny pipeline's ends: from a caller's words to token ids, and from codes to words."""

from __future__ import annotations

from typing import Any

import torch
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.message import OutgoingMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler
from sglang_omni.scheduling.streaming_simple_scheduler import StreamingSimpleScheduler

from omni_stage.tiny import trail
from omni_stage.tiny.codes import code_book
from omni_stage.tiny.tokens import load_tokenizer


def create_preprocessing(model_path: str) -> SimpleScheduler:
    """Stage factory."""
    tokenizer = load_tokenizer(model_path)

    def preprocess(payload: StagePayload) -> StagePayload:
        ids = tokenizer.prompt_ids(messages_of(payload.request.inputs))
        payload.data = {trail.KEY: trail.passed([], "preprocessing"), "input_ids": torch.tensor(ids)}
        return payload

    return SimpleScheduler(preprocess)


def messages_of(inputs: Any) -> list[dict[str, str]]:
    """The conversation, from any of the shapes in which the server hands it over."""
    if isinstance(inputs, dict):
        inputs = next((inputs[key] for key in ("messages", "prompt", "text") if inputs.get(key)), "")
    if isinstance(inputs, str):
        return [{"role": "user", "content": inputs}]
    return [{"role": m["role"], "content": text_of(m.get("content"))} for m in inputs]


def text_of(content: Any) -> str:
    """A message's text; its parts of other kinds are not this pipeline's."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return str(content or "")


class DecodeScheduler(StreamingSimpleScheduler):  # type: ignore[misc]
    """Spells codes: each as it comes, or all at once. The trail stands before the first word."""

    def __init__(self, model_path: str) -> None:
        super().__init__(self.decode_whole)
        self.tokenizer = load_tokenizer(model_path)
        self.book = code_book()
        self.begun: set[str] = set()

    def spell(self, codes: torch.Tensor) -> str:
        """The words of the codes."""
        return self.tokenizer.decode(self.book[codes].tolist())

    def is_streaming_payload(self, payload: StagePayload) -> bool:
        """By the caller's wish."""
        return bool((payload.request.params or {}).get("stream"))

    def result(self, payload: StagePayload, text: str | None) -> dict[str, Any]:
        """What the server makes its answer of. A streamed answer's text has gone already."""
        data = payload.data
        counts = {"prompt_tokens": data["prompt_tokens"], "completion_tokens": int(data["codes"].numel())}
        return {
            **({} if text is None else {"text": text}),
            "modality": "text",
            "finish_reason": data["finish_reason"],
            "usage": {**counts, "total_tokens": sum(counts.values())},
        }

    def decode_whole(self, payload: StagePayload) -> StagePayload:
        """The answer without a stream."""
        came = trail.passed(payload.data[trail.KEY], "decode")
        payload.data = self.result(payload, trail.shown(came) + self.spell(payload.data["codes"]))
        return payload

    def on_stream_chunk(self, request_id: str, item: StreamItem) -> list[OutgoingMessage]:
        """One code in, one word out."""
        text = self.spell(item.data)
        if request_id not in self.begun:
            self.begun.add(request_id)
            text = trail.shown(trail.passed((item.metadata or {})[trail.KEY], "decode")) + text
        data = {"text": text, "modality": "text", "stage_name": "decode"}
        return [OutgoingMessage(request_id, "stream", data=data, metadata={"modality": "text"})] if text else []

    def on_stream_done(self, request_id: str) -> list[OutgoingMessage]:
        """The stream is over: what is left are the counts."""
        payload = self.stream_payloads[request_id]
        payload.data = self.result(payload, None)
        return [OutgoingMessage(request_id, "result", data=payload)]

    def clear_stream_state(self, request_id: str) -> None:
        """At the end of a request, however it ends."""
        self.begun.discard(request_id)


def create_decode(model_path: str) -> DecodeScheduler:
    """Stage factory."""
    return DecodeScheduler(model_path)
