"""Writes importing/data/vllm_pipelines.json from an unpacked vllm-omni package: `python … PACKAGE_FOLDER`.

Only the syntax tree is read, nothing is imported, so neither torch nor vllm is needed.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[2] / "operator/omni_operator/importing/data/vllm_pipelines.json"
KINDS = {"LLM_AR": "ar", "LLM_GENERATION": "generation", "DIFFUSION": "diffusion"}
RESOLVERS = {"resolve_qwen3_omni_pipeline": "QWEN3_OMNI_PIPELINE"}
"""Registry entries that choose by the model's configuration: the shape that most models get."""


def pipelines(package: Path) -> dict[str, Any]:
    """Every registered pipeline: its stages as [name, kind], and the deploy file that belongs to it."""
    found = {name: call for file in sorted(package.rglob("*.py")) for name, call in _definitions(file)}
    result = {}
    for key, variable in _registry(package / "config/pipeline_registry.py"):
        call = found[RESOLVERS.get(variable, variable)]
        row: dict[str, Any] = {"stages": _stages(call["stages"], found)}
        deploy = call.get("default_deploy_config_name")
        if isinstance(deploy, ast.Constant):
            row["deploy"] = deploy.value
        result[key] = row
    return dict(sorted(result.items()))


def _definitions(file: Path) -> list[tuple[str, dict[str, ast.expr]]]:
    text = file.read_text(encoding="utf-8")
    if "PipelineConfig(" not in text:
        return []
    rows = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and getattr(node.value.func, "id", "") == "PipelineConfig":
                rows.append((target.id, {k.arg: k.value for k in node.value.keywords if k.arg}))
    return rows


def _registry(file: Path) -> list[tuple[str, str]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "OMNI_PIPELINES":
            assert isinstance(node.value, ast.Dict)
            return [(ast.literal_eval(k), v.id) for k, v in zip(node.value.keys, node.value.values, strict=True) if k]
    raise SystemExit(f"{file} has no OMNI_PIPELINES")


def _stages(value: ast.expr, found: dict[str, dict[str, ast.expr]]) -> list[list[str]]:
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        return _stages(found[value.value.id]["stages"], found)
    assert isinstance(value, ast.Tuple | ast.List), ast.unparse(value)
    rows = []
    for number, stage in enumerate(value.elts):
        assert isinstance(stage, ast.Call), ast.unparse(stage)
        words = {k.arg: k.value for k in stage.keywords}
        assert ast.literal_eval(words["stage_id"]) == number
        kind = words.get("execution_type")
        rows.append(
            [ast.literal_eval(words["model_stage"]), KINDS[kind.attr] if isinstance(kind, ast.Attribute) else "ar"]
        )
    return rows


def render(package: Path) -> str:
    """The text of the data file."""
    rows = [f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in pipelines(package).items()]
    return '{\n "source": "vllm-omni 0.30.0",\n "pipelines": {\n' + ",\n".join(rows) + "\n }\n}\n"


if __name__ == "__main__":
    TARGET.write_text(render(Path(sys.argv[1])), encoding="utf-8")
