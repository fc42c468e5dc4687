"""vLLM-Omni 0.30's admission of stages that start together, as another oracle for sums per GPU.

`vllm_omni/engine/stage_admission.py` says that its arithmetic is pure, and it is: the file is loaded by itself, with
two stand-ins for the helpers of vLLM that it imports (a logger and a formatter). The package around it needs torch.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_operator.api.quantities import MIB, Share
from omni_operator.catalogue import Card
from omni_operator.planning.budget import check
from omni_operator.planning.layout import Layout, Stage, refused

EXAMPLES = int(os.environ.get("OMNI_CONTRACT_EXAMPLES", "5000")) // 4 or 1


def _admission() -> Any:
    spec = importlib.util.find_spec("vllm_omni")  # finds the folder, runs nothing of it
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vllm-omni is not installed", allow_module_level=True)
    path = Path(spec.submodule_search_locations[0]) / "engine" / "stage_admission.py"
    if not path.exists():
        pytest.skip("this vllm-omni has no stage admission", allow_module_level=True)
    stand_ins = {name: ModuleType(name) for name in ("vllm", "vllm.logger", "vllm.utils", "vllm.utils.mem_utils")}
    stand_ins["vllm.logger"].init_logger = logging.getLogger  # type: ignore[attr-defined]
    stand_ins["vllm.utils.mem_utils"].format_gib = lambda size: f"{size / 2**30:.2f}"  # type: ignore[attr-defined]
    missing = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(missing)
    try:
        loaded = importlib.util.spec_from_file_location("stage_admission_by_itself", path)
        assert loaded is not None
        assert loaded.loader is not None
        module = importlib.util.module_from_spec(loaded)
        sys.modules[loaded.name] = module
        loaded.loader.exec_module(module)
    finally:
        for name in missing:
            del sys.modules[name]
    return module


ADMISSION = _admission()


@st.composite
def demands(draw: st.DrawFn) -> tuple[int, list[tuple[tuple[int, ...], float]]]:
    card = draw(st.sampled_from([24564, 46068, 81559, 143771])) * MIB
    gpus = st.sampled_from([(0,), (0,), (1,), (0, 1), (1, 2)])
    share = st.one_of(st.integers(1, 100).map(lambda n: n / 100), st.integers(1, 1000).map(lambda n: n / 1000))
    return card, draw(st.lists(st.tuples(gpus, share), min_size=1, max_size=5))


def admits(card: int, wanted: list[tuple[tuple[int, ...], float]], **reserves: int) -> bool:
    graph = reserves.pop("graph", 0)
    stages = [ADMISSION.StageDemand(i, 0, list(gpus), share, graph) for i, (gpus, share) in enumerate(wanted)]
    capacities = {gpu: card for gpus, _ in wanted for gpu in gpus}
    try:
        ADMISSION.evaluate(stages, capacities, **reserves)
    except ADMISSION.StageAdmissionError:
        return False
    return True


def our_layout(card: int, wanted: list[tuple[tuple[int, ...], float]]) -> Layout:
    used = sorted({gpu for gpus, _ in wanted for gpu in gpus})
    stages = [
        Stage(f"s{i}", f"s{i}", tuple(used.index(gpu) for gpu in gpus), Share(Fraction(repr(share))))
        for i, (gpus, share) in enumerate(wanted)
    ]
    return Layout("made_up", "default", tuple(stages), Card("made-up", card))


@given(demands())
@settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
def test_without_reserves_the_sums_are_the_same(given_demands: tuple[int, list[tuple[tuple[int, ...], float]]]) -> None:
    """It cuts each share down to whole bytes, so it can pass what is too big by less than a byte for each stage."""
    card, wanted = given_demands
    ours = our_layout(card, wanted)
    theirs = admits(card, wanted, external_reserve_bytes=0, safety_margin_bytes=0)
    if theirs == refused(check(ours)):
        over = max((use.total - 1) * card for use in ours.uses.values())
        assert theirs
        assert 0 < over < len(wanted)


@given(demands())
@settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
def test_what_it_admits_with_its_own_reserves_we_accept(
    given_demands: tuple[int, list[tuple[tuple[int, ...], float]]],
) -> None:
    """It holds back 1 GiB for others, 1 GiB of slack and 2 GiB a stage for CUDA graphs; our warning starts at 94 %."""
    card, wanted = given_demands
    if admits(card, wanted, graph=2 * 1024**3):
        assert not refused(check(our_layout(card, wanted)))
