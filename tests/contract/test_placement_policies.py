"""Where stages of Qwen3-Omni may be: the same verdict as upstream's own placement policy, on every placement.

All placements of the stages on two GPUs are tried, the engines also split over both, and an encoder also on the CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from omni_operator.api.reasons import Reason
from omni_operator.api.v1alpha1 import OmniModelSpec
from omni_operator.planning.budget import check
from omni_operator.planning.resolve import resolve

pytest.importorskip("sglang_omni", reason="sglang-omni is not installed")

Slots = tuple[int, ...]
ROOT = Path(__file__).parents[2]
ONE: tuple[Slots, ...] = ((0,), (1,))
WHERE: dict[str, tuple[Slots, ...]] = {
    "image_encoder": (*ONE, ()),
    "audio_encoder": ONE,
    "thinker": (*ONE, (0, 1)),
    "talker_ar": (*ONE, (0, 1)),
    "code2wav": ONE,
}
PLACEMENTS = [dict(zip(WHERE, found, strict=True)) for found in product(*WHERE.values())]


def upstream(variant: str) -> list[bool]:
    asked = json.dumps({"pipeline": "qwen3_omni", "variant": variant, "placements": PLACEMENTS})
    command = [sys.executable, "-m", "tests.contract.upstream_policies"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    verdicts: list[bool] = json.loads(done.stdout)
    return verdicts


def we_refuse(variant: str, placed: dict[str, Slots]) -> bool:
    stages = [
        {"name": name, "gpus": list(slots), **({"gpuMemory": "1%"} if slots else {})} for name, slots in placed.items()
    ]
    model = {"id": "org/model", "pipeline": "qwen3_omni", "variant": variant, "cache": {"emptyDir": {}}}
    spec = OmniModelSpec.model_validate({"model": model, "gpus": {"card": "h100-80gb"}, "stages": stages})
    layout = resolve(spec).layout
    assert layout is not None
    return any(problem.reason is Reason.LAYOUT_UNSUPPORTED for problem in check(layout))


@pytest.mark.parametrize("variant", ["speech", "speech-colocated"])
def test_every_placement_gets_upstreams_verdict(variant: str) -> None:
    verdicts = upstream(variant)
    assert 0 < sum(verdicts) < len(PLACEMENTS)
    differ = [placed for placed, no in zip(PLACEMENTS, verdicts, strict=True) if we_refuse(variant, placed) is not no]
    assert not differ
