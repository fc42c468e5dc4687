"""How long a plan takes: `python -m tests.bench.planning [--json FILE]`, from the root of the repository.

- plan of Qwen3-Omni's seven stages: read, resolve and check (target: under 1 ms for resolve and check)
- the rule engine against sglang-omni 0.1.9's planner, on the same generated layouts in the same run: the verdict, each
  side from its own ready layout (target: 10 times faster); and from plain data, where upstream's pydantic models check
  types and ours are built out of decimal texts. Ours runs more rules than upstream has. In the contract tests'
  environment where sglang-omni is not importable here (`make .cache/venvs/contract/.installed`), else left out
- start of `kubectl omni plan` as a process (target: under 0.4 s)

Every figure is a median with its minimum. Times of a busy machine mean little; the ratio means more than its parts.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omni_operator.cli.documents import read
from omni_operator.cli.schema import faults, view
from omni_operator.planning.budget import accepted, check
from omni_operator.planning.layout import Layout
from omni_operator.planning.resolve import resolve
from tests.contract.placements import Placed, Placements, our_layout, upstream_config

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "qwen3-omni-h100-colocated.yaml"
LAYOUTS = 200
RUNS = 15
MOST_SECONDS = {"resolve and check": 0.001, "kubectl omni plan": 0.4}
LEAST_RATIO = {"the verdict": 10}
CARD = 80 * 2**30


def measured(run: Callable[[], object], times: int) -> dict[str, float]:
    """Median and minimum of a call, in seconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return {"median": statistics.median(taken), "min": min(taken)}


def one_plan() -> dict[str, dict[str, float]]:
    """Seven stages on one H100."""
    text = EXAMPLE.read_text()
    spec = read(text, "example")[0].data["spec"]
    light = view(spec)
    layout = resolve(light).layout
    assert layout is not None
    return {
        "read the YAML": measured(lambda: read(text, "example"), 100),
        "check it against the schema": measured(lambda: faults(spec), 100),
        "resolve": measured(lambda: resolve(light), 300),
        "check the rules": measured(lambda: check(replace(layout)), 300),
        "resolve and check": measured(lambda: check(resolve(light).layout or layout), 300),
    }


def made_up(seed: int = 7) -> list[Placements]:
    """Layouts of two to seven stages, about half of them overbooked."""
    dice = random.Random(seed)
    found = []
    for _ in range(LAYOUTS):
        count = dice.randint(2, 7)
        gpus = dice.choice([1, 1, 2, 3])
        stages = tuple(
            Placed(f"s{i}", f"s{i}", (i % gpus,), fraction=round(dice.uniform(0.05, 1.9 * gpus / count), 2))
            for i in range(count)
        )
        found.append(Placements(tuple(replace(s, fraction=min(s.fraction or 1, 1.0)) for s in stages), 1.0, CARD))
    return found


def against_upstream() -> dict[str, Any] | None:
    """Both on the same layouts, each from its own ready configuration, in this process or in one of the contract
    tests' environment; None where upstream is in neither."""
    if importlib.util.find_spec("sglang_omni") is None:
        return _in_contract_environment()
    gpu_memory = importlib.import_module("sglang_omni.utils.gpu_memory")
    known = gpu_memory.GpuDeviceInfo(0, None, "made up", CARD)
    gpu_memory.get_gpu_device_info = lambda gpu: known
    layouts = made_up()
    ours = [our_layout(placements) for placements in layouts]
    theirs = [upstream_config(placements) for placements in layouts]
    fresh = [[replace(layout) for layout in ours] for _ in range(RUNS + 1)]  # A layout keeps what it has worked out.

    def we() -> list[bool]:
        return [_we_refuse(layout) for layout in fresh.pop()]

    def they() -> list[bool]:
        return [_upstream_refuses(config) for config in theirs]

    def we_from_data() -> list[bool]:
        return [_we_refuse(our_layout(placements)) for placements in layouts]

    def they_from_data() -> list[bool]:
        return [_upstream_refuses(upstream_config(placements)) for placements in layouts]

    verdicts = we()
    assert verdicts == they() == we_from_data() == they_from_data(), "the verdicts differ"
    rows = {
        "the verdict": _compared(we, they),
        "plain data to the verdict": _compared(we_from_data, they_from_data),
    }
    return {"rows": rows, "layouts": LAYOUTS, "refused": sum(verdicts)}


def _in_contract_environment() -> dict[str, Any] | None:
    python = os.environ.get("OMNI_CONTRACT_PYTHON") or str(ROOT / ".cache/venvs/contract/bin/python")
    if not Path(python).exists():
        return None
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("operator", "stage_image", "")),
    }
    command = [python, "-m", "tests.bench.planning", "--upstream"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, Any] | None = json.loads(done.stdout)
    return found


def _compared(we: Callable[[], object], they: Callable[[], object]) -> dict[str, float]:
    """Seconds per layout, the two in turn so that a busy moment meets both."""
    pairs = [(measured(we, 1)["min"], measured(they, 1)["min"]) for _ in range(RUNS)]
    us, them = statistics.median(us for us, _ in pairs), statistics.median(them for _, them in pairs)
    return {"ours": us / LAYOUTS, "theirs": them / LAYOUTS, "ratio": them / us}


def _we_refuse(layout: Layout) -> bool:
    """As upstream, which stops at the first error. (On a known card nothing is a question.)"""
    return not accepted(layout)


def _upstream_refuses(config: Any) -> bool:
    """What upstream does between its configuration and a start: placement, processes, and bytes against the card.
    What the card is it need not look up."""
    from sglang_omni.config.placement import StagePlacementPlanner, validate_gpu_capacity
    from sglang_omni.config.topology import build_process_topology_plan, compile_logical_processes
    from sglang_omni.pipeline.replicas import expand_replica_stages

    try:
        logical, stages = compile_logical_processes(config)
        stages, copies = expand_replica_stages(stages, logical)
        planner = StagePlacementPlanner(config)
        plan = planner.build(stages_cfg=stages, apply_policy=False, replica_instances=copies.replicas)
        build_process_topology_plan(config, plan, stages_cfg=stages)
        validate_gpu_capacity(plan)
    except ValueError:
        return True
    return False


def start(times: int = 15) -> dict[str, dict[str, float]]:
    """A whole process: wall clock, and processor time, which a busy machine disturbs less."""
    command = [sys.executable, "-m", "omni_operator.cli", "plan", str(EXAMPLE)]
    rows = {}
    for name, arguments in (("python alone", [sys.executable, "-c", "pass"]), ("kubectl omni plan", command)):
        walls, cpus = [], []
        for _ in range(times):
            began = time.perf_counter()
            cpus.append(_run(arguments))
            walls.append(time.perf_counter() - began)
        rows[name] = {
            "median": statistics.median(walls),
            "min": min(walls),
            "processor median": statistics.median(cpus),
            "processor min": min(cpus),
        }
    return rows


def _run(arguments: Sequence[str]) -> float:
    """Processor seconds of a process whose output nobody reads."""
    child = os.posix_spawn(
        arguments[0], arguments, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    )
    _, status, usage = os.wait4(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return usage.ru_utime + usage.ru_stime


def table(result: dict[str, Any]) -> str:
    """The figures for people, each with its limit where it has one."""
    lines = ["plan of seven stages on one H100                 median       min"]
    lines += [_row(name, row, "median", "min") for name, row in result["plan"].items()]
    upstream = result["upstream"]
    if upstream is None:
        lines.append("against sglang-omni's planner: left out, it is not installed")
    else:
        lines.append(f"against sglang-omni 0.1.9's planner, {upstream['layouts']} layouts    ours    theirs   ratio")
        for name, row in upstream["rows"].items():
            said = "" if name not in LEAST_RATIO else f"   at least {LEAST_RATIO[name]}"
            lines.append(f"{_row(name, row, 'ours', 'theirs')} {row['ratio']:6.1f}x{said}")
    lines.append("start of a process                               median       min   processor")
    lines += [_row(name, row, "median", "min", "processor median") for name, row in result["start"].items()]
    return "\n".join(lines)


def _row(name: str, row: dict[str, float], *columns: str) -> str:
    limit = f"   limit {_ms(MOST_SECONDS[name]).strip()}" if name in MOST_SECONDS else ""
    return f"  {name:42} {' '.join(_ms(row[column]) for column in columns)}{limit}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:7.3f}ms"


def main() -> None:
    """Runs everything and prints a table; JSON goes to a file, or after the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there, - for standard output")
    parser.add_argument("--upstream", action="store_true", help="only the comparison, as JSON")
    arguments = parser.parse_args()
    if arguments.upstream:
        print(json.dumps(against_upstream() if importlib.util.find_spec("sglang_omni") else None))
        return
    result = {"plan": one_plan(), "upstream": against_upstream(), "start": start()}
    print(table(result))
    text = json.dumps(result, indent=2) + "\n"
    if arguments.json == "-":
        print(text, end="")
    elif arguments.json:
        Path(arguments.json).write_text(text)


if __name__ == "__main__":
    main()
