"""Why an engine ended: a table of what engines say, and what it means."""

from __future__ import annotations

import pytest

from omni_stage.contract import ExitCode
from omni_stage.report import FailureKind
from omni_stage.supervisor.classify import Ending, classify

TORCH_OOM = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB
"""
CUDA_OOM = "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported\n"
SGLANG_OOM = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. mem_fraction=0.1\n"
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
MPS_GONE = "RuntimeError: CUDA error: the remote procedural call between the MPS server and the MPS client failed\n"
DRIVER = "RuntimeError: CUDA driver error: unknown error\n"
NO_FILE = "OSError: /models/x does not appear to have a file named config.json.\n"
GATED = "huggingface_hub.errors.GatedRepoError: 401 Client Error.\n"
BUG = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
KeyError: 'thinker'
"""
EARLY_WARNING = "CUDA error: something a library warned of at the start\n" + BUG


@pytest.mark.parametrize(
    ("ending", "code", "reason"),
    [
        (Ending(1, failure_text=TORCH_OOM), ExitCode.OUT_OF_BUDGET, "torch.OutOfMemoryError: CUDA out of memory"),
        (Ending(1, error_output=CUDA_OOM), ExitCode.OUT_OF_BUDGET, "CUDA error: out of memory"),
        (Ending(1, failure_text=SGLANG_OOM), ExitCode.OUT_OF_BUDGET, "Not enough memory"),
        (Ending(1, failure_text=ILLEGAL), ExitCode.CUDA_FAULT, "illegal memory access"),
        (Ending(-6, error_output=ILLEGAL), ExitCode.CUDA_FAULT, "illegal memory access"),
        (Ending(1, failure_text=MPS_GONE), ExitCode.CUDA_FAULT, "MPS server"),
        (Ending(1, failure_text=DRIVER), ExitCode.CUDA_FAULT, "CUDA driver error"),
        (Ending(1, failure_text=NO_FILE), ExitCode.BAD_CONFIG, "config.json"),
        (Ending(1, failure_text=GATED), ExitCode.BAD_CONFIG, "GatedRepoError"),
        (Ending(78, error_output="omni_stage: variant: none such"), ExitCode.BAD_CONFIG, "variant: none such"),
        (Ending(1, FailureKind.CONFIG, "stages: talker missing"), ExitCode.BAD_CONFIG, "stages: talker missing"),
        (Ending(1, FailureKind.PEER_LOST, "PeerLost: r1 not taken over"), ExitCode.PEER_LOST, "not taken over"),
        (Ending(1, failure_text=BUG), ExitCode.ENGINE_LOST, "exit status 1: KeyError: 'thinker'"),
        (Ending(1, FailureKind.CRASH, BUG, EARLY_WARNING), ExitCode.ENGINE_LOST, "KeyError: 'thinker'"),
        (Ending(0), ExitCode.ENGINE_LOST, "exit status 0"),
        (Ending(-9), ExitCode.ENGINE_LOST, "want of host memory"),
        (Ending(-11), ExitCode.ENGINE_LOST, "signal SIGSEGV"),
        (Ending(-99), ExitCode.ENGINE_LOST, "signal 99"),
    ],
)
def test_an_ending_has_its_code_and_reason(ending: Ending, code: ExitCode, reason: str) -> None:
    verdict = classify(ending)
    assert verdict.code is code
    assert reason in verdict.reason
    assert "\n" not in verdict.reason
