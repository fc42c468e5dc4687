"""Why an engine process ended, as one of the contract's exit codes. Pure.

The operator decides by the code what restarts: nothing (the share is too small, the config is wrong), the container,
or every stage of the GPU. So a wrong guess is costly in one direction only: what is not recognised counts as
`ENGINE_LOST`, which restarts this container.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from omni_stage.contract import ExitCode
from omni_stage.report import FailureKind


@dataclass(frozen=True)
class Ending:
    """What is known of an engine process that ended."""

    status: int
    """Exit status; minus the signal's number where a signal ended it (as subprocess tells it)."""
    failure: FailureKind | None = None
    """What the process said of itself, if it could."""
    failure_text: str = ""
    error_output: str = ""
    """The end of its standard error."""


@dataclass(frozen=True)
class Verdict:
    """The exit code and one line for people."""

    code: ExitCode
    reason: str


OUT_OF_BUDGET = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|Not enough memory\. Please try|exceed physical memory|No available memory for the cache blocks"
)
"""torch's, the CUDA libraries', and SGLang's own words when a stage outgrows its share."""
CUDA_FAULT = re.compile(
    r"CUDA error|CUDA driver error|cudaError[A-Z]|CUDA_ERROR_|illegal memory access|device-side assert"
    r"|CUBLAS_STATUS_|CUDNN_STATUS_|ncclUnhandledCudaError|ncclInternalError|NCCL error"
    r"|uncorrectable ECC|MPS (?:server|daemon|client|control)|Found no NVIDIA driver"
)
BAD_CONFIG = re.compile(
    r"ConfigError|validation errors? for|HFValidationError|GatedRepoError|RepositoryNotFoundError"
    r"|is not a valid model identifier|does not appear to have a file named|got an unexpected keyword argument"
    r"|Unrecognized model in"
)
"""What a restart would only repeat."""
NOISE = re.compile(r"^\s*$|^\s+|^Traceback|^During handling|^The above exception|^\[.*WARN")


def classify(ending: Ending) -> Verdict:
    """The verdict on an engine process that nobody asked to stop."""
    text = ending.failure_text or ending.error_output
    if ending.failure is FailureKind.CONFIG:
        return Verdict(ExitCode.BAD_CONFIG, " ".join(text.split()))
    if ending.status == ExitCode.BAD_CONFIG:
        return Verdict(ExitCode.BAD_CONFIG, last_line(text) or "the engine refused its configuration")
    if ending.failure is FailureKind.PEER_LOST:
        return Verdict(ExitCode.PEER_LOST, last_line(text) or "a neighbour did not answer in time")
    for pattern, code in (
        (OUT_OF_BUDGET, ExitCode.OUT_OF_BUDGET),
        (CUDA_FAULT, ExitCode.CUDA_FAULT),
        (BAD_CONFIG, ExitCode.BAD_CONFIG),
    ):
        match = pattern.search(text)
        if match:
            return Verdict(code, line_around(text, match.start()))
    return Verdict(ExitCode.ENGINE_LOST, unknown_reason(ending, text))


def unknown_reason(ending: Ending, text: str) -> str:
    """The best line there is for an ending that no pattern knows."""
    if ending.status == -signal.SIGKILL:
        return "the engine was killed (SIGKILL), most likely for want of host memory"
    how = f"exit status {ending.status}"
    if ending.status < 0:
        how = f"signal {signal_name(-ending.status)}"
    line = last_line(text)
    return f"the engine ended with {how}" + (f": {line}" if line else "")


def signal_name(number: int) -> str:
    """SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def last_line(text: str) -> str:
    """The last line that says something: not blank, indented, or a traceback's frame."""
    for line in reversed(text.splitlines()):
        if not NOISE.match(line):
            return line.strip()[:500]
    return ""


def line_around(text: str, position: int) -> str:
    """The whole line at a position."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()[:500]
