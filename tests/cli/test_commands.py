"""`estimate`, `solve`, `import` and `render`, as a user sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from omni_operator.cli import main
from tests.conftest import ROOT

QWEN = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
OVER = str(ROOT / "examples/qwen3-omni-h100-overbooked.yaml")
TINY = str(ROOT / "examples/tiny-omni.yaml")
Capture = pytest.CaptureFixture[str]


def test_estimate_of_a_known_model(capsys: Capture) -> None:
    assert main(["estimate", QWEN, "--variant", "speech-colocated", "--card", "h100-80gb"]) == 0
    shown = capsys.readouterr().out
    assert "weights 56.8Gi" in shown
    assert "h200" in shown


def test_estimate_of_what_nobody_knows(capsys: Capture) -> None:
    assert main(["estimate", "who/knows"]) == 2
    assert "neither a file nor a known model" in capsys.readouterr().err
    assert main(["estimate", TINY]) == 1
    assert "is not known to the catalogue" in capsys.readouterr().out


@pytest.mark.parametrize("context", ["0", "-1", "x", "1e5", "٣"])
def test_a_context_is_a_whole_number(context: str) -> None:
    assert main(["estimate", QWEN, "--context", context]) == 2


def test_a_solution_is_accepted_as_it_stands(tmp_path: Path, capsys: Capture) -> None:
    assert main(["solve", QWEN, "--card", "h200", "--variant", "speech-colocated", "-o", "yaml"]) == 0
    (tmp_path / "m.yaml").write_text(capsys.readouterr().out)
    assert main(["plan", str(tmp_path / "m.yaml")]) == 0


def test_a_solution_is_drawn_with_its_reasons(capsys: Capture) -> None:
    assert main(["solve", QWEN, "--card", "h100-80gb", "--goal", "first-sound"]) == 0
    shown = capsys.readouterr().out
    assert "GPU 1" in shown
    assert "talker_ar" in shown


def test_where_nothing_fits_the_reason_is_said(capsys: Capture) -> None:
    assert main(["solve", QWEN, "--card", "l4", "--gpus", "1"]) == 1
    assert capsys.readouterr().err


def test_import_writes_an_omnimodel_and_its_notes_apart(tmp_path: Path, capsys: Capture) -> None:
    given = tmp_path / "old.yaml"
    given.write_text(
        "model_path: Qwen/Qwen3-Omni-30B-A3B-Instruct\nconfig_cls: Qwen3OmniSpeechColocatedPipelineConfig\n"
    )
    code = main(["import", str(given), "--card", "h100-80gb"])
    shown = capsys.readouterr()
    assert code in (0, 1)
    assert yaml.safe_load(shown.out)["kind"] == "OmniModel"
    assert shown.err.startswith("form: ")


def test_import_of_something_else(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "x.yaml").write_text("a: 1\n")
    assert main(["import", str(tmp_path / "x.yaml")]) == 2
    assert "x.yaml" in capsys.readouterr().err


def test_render_prints_every_child(capsys: Capture) -> None:
    assert main(["render", TINY, "-n", "team"]) == 0
    manifests = list(yaml.safe_load_all(capsys.readouterr().out))
    kinds = [manifest["kind"] for manifest in manifests]
    assert {"Service", "NetworkPolicy", "ResourceClaim", "Pod"} <= set(kinds)
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {"team"}
    assert all("ownerReferences" not in manifest["metadata"] for manifest in manifests)


def test_render_of_a_refused_model_prints_why(capsys: Capture) -> None:
    assert main(["render", OVER]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "BudgetExceeded: GPU 0 is overbooked" in shown.err
