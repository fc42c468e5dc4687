"""Which form a document has. What is none of them is refused with what it looks like."""

from __future__ import annotations

from typing import Any

from omni_operator.importing.found import Form
from omni_operator.importing.notes import ImportProblem
from omni_operator.importing.reading import Data, shown

SUPPORTED = (
    "sglang-omni pipeline files (config_cls with stages, stage_overrides or runtime_overrides), vllm-omni "
    "stage_args and "
    "deploy files, and --stage-overrides JSON"
)
_SGLANG_KEYS = {"config_cls", "stage_overrides", "runtime_overrides", "processes", "weight_share", "relay_backend"}


def detect(data: Data) -> Form:
    """The form of a document. Raises ImportProblem where there is none."""
    refuse_other_kinds(data)
    if "stage_args" in data:
        return _single(data, Form.VLLM_STAGE_ARGS, ("config_cls", "stage_overrides", "runtime_overrides", "stages"))
    if data and all(key.isascii() and key.isdigit() for key in data):
        return Form.VLLM_STAGE_OVERRIDES
    if _is_vllm(data):
        nested = "model_type" in data and any("model_stage" in stage for stage in _entries(data.get("stages")))
        form = Form.VLLM_PIPELINE if nested else Form.VLLM_DEPLOY
        return _single(data, form, ("config_cls", "stage_overrides", "runtime_overrides"))
    if _SGLANG_KEYS & data.keys() or ("model_path" in data and "stages" in data):
        return _sglang(data)
    raise ImportProblem(
        f"is no configuration that can be imported: its fields are {_listed(data)}. Read are {SUPPORTED}"
    )


def _sglang(data: Data) -> Form:
    stages = data.get("stages")
    if isinstance(stages, list):
        return Form.SGLANG_STAGES_LIST
    if "stage_overrides" in data or "runtime_overrides" in data:
        old = "stage_overrides" if "stage_overrides" in data else "runtime_overrides"
        form = Form.SGLANG_STAGE_OVERRIDES if "stage_overrides" in data else Form.SGLANG_RUNTIME_OVERRIDES
        if stages is not None:
            raise ImportProblem(f"mixes two forms: {old} and a stages mapping. Write all settings under stages")
        return form
    if stages is not None or {"processes", "mps", "weight_share", "shared"} & data.keys():
        return Form.SGLANG_STAGES_MAP
    return Form.SGLANG_CLASS


def _is_vllm(data: Data) -> bool:
    if any("stage_id" in stage for stage in _entries(data.get("stages"))):
        return True
    if "base_config" in data:
        return True
    return "config_cls" not in data and bool({"async_chunk", "platforms"} & data.keys()) and "model_path" not in data


def _single(data: Data, form: Form, others: tuple[str, ...]) -> Form:
    mixed = [key for key in others if key in data]
    if mixed:
        raise ImportProblem(f"mixes two forms: {form.value} and {', '.join(mixed)}. Keep one of them")
    return form


def refuse_other_kinds(data: Data) -> None:
    """Files that people mistake for pipeline files. Raises ImportProblem with what each looks like."""
    if "apiVersion" in data or {"kind", "metadata"} <= data.keys():
        _refuse_manifest(data)
    if isinstance(data.get("launcher"), dict):
        raise ImportProblem(_router(data["launcher"]))
    if "version" in data and ("sharing" in data or "flags" in data):
        raise ImportProblem(
            "looks like a configuration of the NVIDIA device plugin, which is about nodes; no model is in it"
        )
    if "stages" not in data and len({"model_type", "architectures", "hidden_size"} & data.keys()) > 1:
        raise ImportProblem("looks like a model's config.json; give its folder to `kubectl omni estimate` instead")
    if isinstance(data.get("services"), dict) and "config_cls" not in data:
        raise ImportProblem("looks like a Docker Compose file; import the pipeline file that its command names")


def _refuse_manifest(data: Data) -> None:
    kind, group = str(data.get("kind")), str(data.get("apiVersion"))
    if kind == "OmniModel":
        raise ImportProblem("is an OmniModel already; give it to `kubectl omni plan`")
    raise ImportProblem(f"looks like a Kubernetes manifest ({group} {kind}), not like a pipeline file")


def _router(launcher: dict[str, Any]) -> str:
    message = "looks like a launcher file of sglang-omni's router, which starts whole servers and has no stages in it"
    extra = launcher.get("worker_extra_args")
    words = extra.split() if isinstance(extra, str) else []
    if "--config" in words[:-1]:
        message += f"; import the file that its workers read, {shown(words[words.index('--config') + 1])}"
    else:
        message += "; import the pipeline file that its workers read"
    workers = launcher.get("num_workers")
    return message + (f", and set spec.replicas to {workers}" if isinstance(workers, int) else "")


def _entries(value: Any) -> list[Data]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _listed(data: Data) -> str:
    names = [shown(key) for key in data][:8]
    return (", ".join(names) + (", …" if len(data) > 8 else "")) or "none"
