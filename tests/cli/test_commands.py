"""`estimate`, `solve`, `import`, `export` and `render`, as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from omni_operator.cli import main
from tests.conftest import ROOT

QWEN = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
GOOD = str(ROOT / "examples/qwen3-omni-h100-colocated.yaml")
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
    assert "neither a file nor a folder nor a known model" in capsys.readouterr().err
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


def test_export_is_what_upstream_reads_and_a_refused_model_is_not_exported(capsys: Capture) -> None:
    assert main(["export", GOOD]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    assert document["config_cls"] == "Qwen3OmniSpeechColocatedPipelineConfig"
    assert document["stages"]["thinker"] == {"gpu_memory_fraction": 0.78, "engine": {"max_running_requests": 16}}
    assert main(["export", GOOD.replace("colocated", "overbooked")]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "BudgetExceeded" in shown.err


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip


def test_estimate_of_a_folder_that_no_pipeline_is_for(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert main(["estimate", str(tmp_path), "--card", "l4"]) == 0
    shown = capsys.readouterr().out
    assert "weights 15.0Gi, KV cache 1Gi" in shown
    assert "5 requests of 8,192 tokens at once" in " ".join(shown.split())


def test_a_folder_gives_the_size_of_a_files_model(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    given = tmp_path / "higgs.yaml"
    given.write_text(
        "apiVersion: omnimodel.io/v1alpha1\nkind: OmniModel\nmetadata: {name: own}\n"
        "spec: {model: {id: /models/own, pipeline: higgs_tts, cache: {emptyDir: {}}}, gpus: {card: h100-80gb}}\n"
    )
    main(["estimate", str(given), "--folder", str(folder)])
    assert "weights 15.0Gi" in capsys.readouterr().out


def test_a_folder_without_a_model_is_bad_input(tmp_path: Path, capsys: Capture) -> None:
    assert main(["estimate", str(tmp_path)]) == 2
    assert "config.json is missing" in capsys.readouterr().err


def test_a_mistyped_card_or_model_names_the_nearest(capsys: Capture) -> None:
    assert main(["plan", GOOD, "--card", "h100"]) == 2
    assert "did you mean h100-80gb?" in capsys.readouterr().err
    assert main(["estimate", "qwen/qwen3-omni"]) == 2
    assert "Did you mean Qwen/Qwen3-Omni-30B-A3B-Instruct?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "estimate", "solve", "import"])
def test_a_card_without_a_memory_size_is_asked_for_it(command: str, tmp_path: Path, capsys: Capture) -> None:
    given = tmp_path / "f.yaml"
    given.write_text("config_cls: HiggsTtsPipelineConfig\nmodel_path: bosonai/higgs-tts-3-4b\n")
    assert main([command, str(given) if command == "import" else GOOD, "--card", "gb10"]) == 2
    assert "reports no memory size; give" in capsys.readouterr().err


def test_import_takes_a_card_by_its_memory(tmp_path: Path, capsys: Capture) -> None:
    given = tmp_path / "f.yaml"
    given.write_text("config_cls: HiggsTtsPipelineConfig\nmodel_path: bosonai/higgs-tts-3-4b\n")
    main(["import", str(given), "--card", "81559Mi"])
    assert yaml.safe_load(capsys.readouterr().out)["spec"]["gpus"] == {"memory": "81559Mi"}


def test_of_a_hub_id_every_variant_with_the_same_stages_is_tried(capsys: Capture) -> None:
    assert main(["solve", QWEN, "--card", "h200", "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["spec"]["model"]["variant"] == "speech-colocated"
    assert main(["solve", QWEN, "--card", "h200", "-o", "yaml", "--goal", "first-sound"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["spec"]["model"]["variant"] == "speech"


def test_layouts_that_others_run_on_the_card_stand_beside(capsys: Capture) -> None:
    main(["solve", QWEN, "--card", "h200"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Others run it on 1 × h200 as speech-colocated: " in shown
    assert "qwen3_omni_colocated_h200.yaml" in shown
