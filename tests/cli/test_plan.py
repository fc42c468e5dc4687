"""`kubectl omni plan`, as a user sees it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from omni_operator.cli import main
from omni_operator.cli.judge import Options
from omni_operator.cli.paint import Canvas, Span, canvas_for, wrapped
from omni_operator.cli.plan import output, span_of
from omni_operator.cli.sources import judgements
from tests.conftest import ROOT

GOOD = str(ROOT / "examples/qwen3-omni-h100-colocated.yaml")
OVER = str(ROOT / "examples/qwen3-omni-h100-overbooked.yaml")
TINY = str(ROOT / "examples/tiny-omni.yaml")
Capture = pytest.CaptureFixture[str]


def write(folder: Path, name: str = "m.yaml", **changes: Any) -> str:
    manifest = yaml.safe_load(Path(GOOD).read_text())
    manifest["spec"] |= changes
    (folder / name).write_text(yaml.safe_dump(manifest))
    return str(folder / name)


def test_an_accepted_layout(capsys: Capture) -> None:
    assert main(["plan", GOOD]) == 0
    shown = capsys.readouterr().out
    assert "✓ Accepted  GPU 0 94% of 100%" in shown
    assert "thinker            78%   62.1Gi" in shown
    assert "free                6%    4.8Gi" in shown
    assert "\x1b" not in shown


def test_a_refused_one_says_why_and_what_would_fit(capsys: Capture) -> None:
    assert main(["plan", OVER]) == 1
    shown = capsys.readouterr().out
    assert "✗ Refused" in shown
    assert "104% of 100% asked for" in shown
    assert "the card ends here ▲" in shown
    assert "1. Lower gpuMemory of thinker from 88% to 84%" in shown
    assert "[line 14]" in shown


def test_a_remedy_can_be_tried_as_it_is_printed(capsys: Capture) -> None:
    main(["plan", OVER, "-o", "json"])
    for remedy in json.loads(capsys.readouterr().out)["plans"][0]["remedies"]:
        edits = [part for edit in remedy["set"] for part in ("--set", edit)]
        assert main(["plan", OVER, *edits]) == 0, remedy["title"]


def test_several_files_and_documents(tmp_path: Path, capsys: Capture) -> None:
    both = tmp_path / "both.yaml"
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n"
    both.write_text("---\n".join([namespace, Path(GOOD).read_text(), Path(OVER).read_text()]))
    assert main(["plan", TINY, str(both), "-o", "json"]) == 1
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert [plan["verdict"] for plan in plans] == ["accepted", "accepted", "refused"]
    assert plans[1]["notes"] == ["Not planned: Namespace n."]


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(GOOD).read_bytes())))
    assert main(["plan", "-"]) == 0
    assert "Accepted" in capsys.readouterr().out


def test_json_has_stable_fields_and_bytes(capsys: Capture) -> None:
    main(["plan", OVER, "-o", "json"])
    plan = json.loads(capsys.readouterr().out)["plans"][0]
    problem = plan["problems"][0]
    assert (problem["reason"], problem["slot"], problem["line"]) == ("BudgetExceeded", 0, 14)
    assert (problem["needed"], problem["available"]) == (88941642384, 85520809984)
    assert plan["slots"] == [
        {
            "slot": 0,
            "givenAway": "104%",
            "free": "0%",
            "freeBytes": 0,
            "stages": ["image_encoder", "audio_encoder", "thinker", "talker_ar", "code2wav"],
            "withoutBudget": [],
        }
    ]
    assert plan["sharing"] == {"strategy": "MPS", "backend": "DRA"}


def test_yaml_says_the_same_as_json(capsys: Capture) -> None:
    main(["plan", OVER, "-o", "json"])
    as_json = json.loads(capsys.readouterr().out)
    main(["plan", OVER, "-o", "yaml"])
    assert yaml.safe_load(capsys.readouterr().out) == as_json


def test_svg_is_well_formed_and_to_scale(capsys: Capture) -> None:
    main(["plan", GOOD, OVER, "-o", "svg"])
    root = ElementTree.fromstring(capsys.readouterr().out)
    bars = [
        e
        for e in root.iter("{http://www.w3.org/2000/svg}rect")
        if e.find("{http://www.w3.org/2000/svg}title") is not None
    ]
    assert sum(float(bar.get("width", "0")) for bar in bars[: len(bars) // 2]) == pytest.approx(0.94 * 820, abs=1)


def test_text_of_an_svg_cannot_become_markup(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path)
    Path(path).write_text(Path(path).read_text().replace("name: qwen3-omni\n", "name: '<script>&\"'\n"))
    main(["plan", path, "-o", "svg"])
    shown = capsys.readouterr().out
    assert "<script>" not in shown
    ElementTree.fromstring(shown)


def test_wide_adds_processes(capsys: Capture) -> None:
    main(["plan", GOOD, "-o", "wide"])
    assert "process talker_ar" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--strict"], 1),
        (["--card", "h200"], 0),
        (["--card", "l40s"], 1),
        (["--card", "81559Mi"], 0),
        (["--held", "0=6%"], 0),
        (["--held", "0=7%"], 1),
        (["--held", "1=50%"], 0),
        (["--set", "stages[thinker].gpuMemory=85%"], 1),
        (["--set", "gpus.card=", "--set", "gpus.memory="], 1),
    ],
)
def test_options_change_the_verdict(arguments: list[str], code: int) -> None:
    assert main(["plan", GOOD, *arguments]) == code


def test_of_several_cards_the_smallest_counts(capsys: Capture) -> None:
    main(["plan", GOOD, "--card", "h200", "--card", "a100-80gb", "--card", "h100-80gb", "-o", "json"])
    assert json.loads(capsys.readouterr().out)["plans"][0]["card"]["name"] == "h100-80gb"


def test_without_a_card_the_shares_fit_and_it_is_not_decided(tmp_path: Path, capsys: Capture) -> None:
    assert main(["plan", write(tmp_path, gpus={})]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "? Not decided" in shown
    assert "the shares fit, but byte budgets are unknown" in shown


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a: [1", ":1:4: not valid YAML"),
        ("", "holds no document"),
        ("# nothing\n", "holds no document"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", ":1:1: holds no OmniModel, but Pod p"),
        ("apiVersion: omnimodel.io/v9\nkind: OmniModel\nspec: {}\n", ":1:1: apiVersion 'omnimodel.io/v9' is not known"),
        ("apiVersion: omnimodel.io/v1alpha1\nkind: Omni\nspec: {}\n", ":2:1: kind 'Omni' is not OmniModel"),
        ("apiVersion: omnimodel.io/v1alpha1\nkind: OmniModel\n", "spec is missing"),
        ("apiVersion: omnimodel.io/v1alpha1\nkind: OmniModel\nspec:\n  modl: {}\n", ":3:1: spec: model is missing"),
        ("apiVersion: omnimodel.io/v1alpha1\nkind: OmniModel\nmetadata: [1]\nspec: {}\n", "metadata must be a mapping"),
        ("just text", ""),
        ("{a: 1}", ""),
        ("[1, 2]", ""),
    ],
)
def test_bad_input_has_a_place_and_code_2_and_no_traceback(
    content: str, says: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    assert main(["plan", str(tmp_path / "bad.yaml")]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.startswith(str(tmp_path / "bad.yaml"))
    assert shown.out == ""
    assert "Traceback" not in shown.err


def test_a_fault_in_a_field_has_its_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "m.yaml").write_text(Path(GOOD).read_text().replace("gpuMemory: 78%", "gpuMemory: 78GB"))
    assert main(["plan", str(tmp_path / "m.yaml")]) == 2
    error = capsys.readouterr().err
    line = next(i for i, text in enumerate(Path(GOOD).read_text().splitlines(), 1) if "78%" in text)
    assert f"m.yaml:{line}:" in error
    assert "'78GB' is not a Kubernetes quantity; write 78G, or 78Gi" in error


@pytest.mark.parametrize("name", ["/does/not/exist.yaml", "/", "a\0b"])
def test_a_file_that_cannot_be_read(name: str, capsys: Capture) -> None:
    assert main(["plan", name]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["plan"], ["pln"], ["plan", GOOD, "-o", "png"], ["plan", GOOD, "--card", "h1000"], ["plan", GOOD, "--held", "x"],
     ["plan", GOOD, "--held", "0=4GB"], ["plan", GOOD, "--set", "x"], ["plan", GOOD, "--nonsense"], ["--nonsense"]],
)  # fmt: skip
def test_wrong_usage_is_code_2(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["--version"], []])
def test_help_and_version(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 0
    assert "omni" in capsys.readouterr().out


def test_an_upstream_file_is_imported_on_the_way(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "stage_args:\n- {stage_id: 0, runtime: {devices: '0'}, engine_args: {gpu_memory_utilization: 1.2}}\n"
    )
    assert main(["plan", str(path)]) == 2
    stage = (
        "- {{stage_id: {0}, runtime: {{devices: '0'}}, "
        "engine_args: {{model_stage: s{0}, gpu_memory_utilization: 0.6}}}}\n"
    )
    path.write_text("stage_args:\n" + stage.format(0) + stage.format(1))
    assert main(["plan", str(path), "--card", "h100-80gb"]) == 1
    shown = capsys.readouterr().out
    assert "120% of 100%" in shown
    assert "note: Imported: vllm-omni" in shown
    assert main(["plan", str(path), "--set", "replicas=2"]) == 2


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("color", [True, False])
def test_no_line_is_longer_than_the_terminal(columns: int, color: bool) -> None:
    drawn = output(judgements([OVER, GOOD], Options()), "text", Canvas(columns, color=color))
    for line in drawn.splitlines():
        assert len(_without_codes(line)) <= max(columns, 76), line


def test_colours_are_only_for_terminals() -> None:
    terminal = _Stream(tty=True)
    assert canvas_for(terminal, {"TERM": "xterm-256color"}).color
    assert not canvas_for(terminal, {"TERM": "xterm", "NO_COLOR": "1"}).color
    assert not canvas_for(terminal, {"TERM": "dumb"}).color
    assert not canvas_for(_Stream(tty=False), {"TERM": "xterm"}).color
    assert canvas_for(_Stream(tty=False), {"FORCE_COLOR": "1"}).color
    assert canvas_for(_Stream(tty=False), {"COLUMNS": "77"}).columns == 77
    assert canvas_for(_Stream(tty=False), {"COLUMNS": "nonsense"}).columns == 100


def test_without_unicode_everything_is_ascii() -> None:
    judged = judgements([OVER, GOOD], Options())
    drawn = output(judged, "text", Canvas(80, unicode=False))
    assert drawn.isascii()


def test_breaking_lines_keeps_every_word() -> None:
    spans = [Span("one two "), Span("three"), Span(" four")]
    assert ["".join(span.text for span in line) for line in wrapped(spans, 9, 2)] == ["one two ", "  three", "  four"]


@pytest.mark.parametrize(
    ("slots", "text"), [([0], "0"), ([0, 1], "0 and 1"), ([0, 1, 2], "0 to 2"), ([0, 2, 5], "0, 2 and 5")]
)
def test_ranges_of_gpus(slots: list[int], text: str) -> None:
    assert span_of(slots) == text


def test_a_start_loads_neither_cluster_nor_models() -> None:
    script = (
        "import sys; from omni_operator.cli import main; code = main(['plan', sys.argv[1]]); "
        "heavy = ('kubernetes', 'kopf', 'torch', 'pydantic', 'rich', 'asyncio', 'typer'); "
        "sys.exit(code or ','.join(name for name in heavy if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script, GOOD], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{sys.executable} -m omni_operator.cli plan {' '.join([GOOD] * 30)} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


class _Stream(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


def _without_codes(line: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("stages: [{stage_id: 0, devices: '2,3', gpu_memory_utilization: 0.7}]", "DeviceCountMismatch"),
        ("config_cls: NobodysPipelineConfig\nruntime_overrides: {a: {b: 1}}", "UnknownPipeline"),
    ],
)
def test_an_imported_file_whose_placement_is_open_is_not_accepted(
    text: str, reason: str, tmp_path: Path, capsys: Capture
) -> None:
    given = tmp_path / "f.yaml"
    given.write_text(text)
    assert main(["plan", str(given), "--card", "h200"]) == 1
    shown = capsys.readouterr().out
    assert "Not decided" in shown
    assert reason in shown
