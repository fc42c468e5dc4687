"""The tiny pipeline's talker: a small torch model that turns tokens into codes, as they come or all at once."""

from __future__ import annotations

import torch
from sglang_omni.pipeline.stage.stream_queue import StreamItem
from sglang_omni.platforms import current_platform
from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.message import OutgoingMessage
from sglang_omni.scheduling.streaming_simple_scheduler import StreamingSimpleScheduler

from omni_stage.tiny import trail
from omni_stage.tiny.codes import CODES, code_book

WIDTH = 512


class Voice(torch.nn.Module):  # type: ignore[misc]
    """Token -> hidden -> the code whose direction is nearest."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        directions, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator))
        self.embedding = torch.nn.Embedding.from_pretrained(directions[:CODES].contiguous())
        self.head = torch.nn.Linear(WIDTH, CODES, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(directions[code_book()])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [n] tokens -> int64 [n] codes."""
        with torch.inference_mode():
            codes: torch.Tensor = self.head(self.embedding(tokens)).argmax(-1)
        return codes


class TalkerScheduler(StreamingSimpleScheduler):  # type: ignore[misc]
    """Voices each streamed token at once; without a stream, the whole answer."""

    def __init__(self, voice: Voice, device: torch.device) -> None:
        super().__init__(self.voice_whole)
        self.voice, self.device = voice, device

    def speak(self, tokens: torch.Tensor) -> torch.Tensor:
        """Codes of tokens, back in host memory."""
        return self.voice(tokens.to(self.device)).cpu()

    def is_streaming_payload(self, payload: StagePayload) -> bool:
        """By the caller's wish."""
        return bool((payload.request.params or {}).get("stream"))

    def voice_whole(self, payload: StagePayload) -> StagePayload:
        """The payload for decode."""
        data = payload.data
        payload.data = {
            **{key: data[key] for key in ("prompt_tokens", "finish_reason")},
            trail.KEY: trail.passed(data[trail.KEY], "talker"),
            "codes": self.speak(data["output_ids"]),
        }
        return payload

    def on_stream_chunk(self, request_id: str, item: StreamItem) -> list[OutgoingMessage]:
        """One token in, one code out."""
        came = (item.metadata or {})[trail.KEY]
        metadata = {trail.KEY: trail.passed(came, "talker")}
        codes = self.speak(item.data)
        return [OutgoingMessage(request_id, "stream", data=codes, target="decode", metadata=metadata)]

    def on_stream_done(self, request_id: str) -> list[OutgoingMessage]:
        """Everything is voiced: the payload follows."""
        payload = self.stream_payloads[request_id]
        return [OutgoingMessage(request_id, "result", data=self.voice_whole(payload))]


def create_talker(*, gpu_id: int | None = None) -> TalkerScheduler:
    """Stage factory."""
    device = torch.device("cpu") if gpu_id is None else current_platform.get_device(gpu_id)
    return TalkerScheduler(Voice().to(device), device)
