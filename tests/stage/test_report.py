"""What an engine tells its supervisor survives the pipe."""

from __future__ import annotations

import pytest

from omni_stage.report import MAX_LINE, FailureKind, Phase, Report, decode, encode


@pytest.mark.parametrize(
    "message",
    [
        Report(),
        Report(phase=Phase.READY),
        Report(phase=Phase.WAITING, detail="waiting for thinker: loading"),
        Report(memory_bytes=0, gauges={"active_requests": 2.0}),
        Report(failure=FailureKind.CRASH, detail="line one\nline two ✓"),
    ],
)
def test_a_message_is_read_back(message: Report) -> None:
    assert decode(encode(message)) == message


def test_a_long_detail_keeps_its_end() -> None:
    line = encode(Report(failure=FailureKind.CRASH, detail="é" * 100_000 + "the cause"))
    assert len(line) <= MAX_LINE
    message = decode(line)
    assert message is not None
    assert message.detail.endswith("the cause")


def test_a_long_problem_with_the_file_keeps_its_beginning() -> None:
    message = decode(encode(Report(failure=FailureKind.CONFIG, detail="stages[0].x: unknown" + "é" * 100_000)))
    assert message is not None
    assert message.detail.startswith("stages[0].x: unknown")


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"phase": "flying"}', b'{"gauges": {"a": "b"}}', b"\xff"])
def test_noise_is_no_message(line: bytes) -> None:
    assert decode(line) is None
