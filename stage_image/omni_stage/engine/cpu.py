"""What sglang-omni and SGLang need before they are imported in a container that sees no GPU.

That is the front, a stage that computes on the CPU by its nature, and every stage where a pod's file says `cpu`.
"""

from __future__ import annotations

import sys
import types
from collections.abc import MutableMapping
from importlib.machinery import ModuleSpec
from typing import NoReturn

PLATFORM_VARIABLE = "SGLANG_OMNI_PLATFORM_SPEC"
PLATFORM = "sglang_omni.platforms.cpu.CPUOmniPlatform"
ENGINE_ARGS: dict[str, object] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_overlap_schedule": True,
    "disable_cuda_graph": True,
}
"""SGLang's arguments for a processor without its AMX kernels."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
"""Where a whole replica computes on the CPU, it shares a small machine."""


def prepare(environment: MutableMapping[str, str]) -> None:
    """Choose the CPU platform and make SGLang's CPU path importable. Before any import of either."""
    environment[PLATFORM_VARIABLE] = PLATFORM
    # SGLang's own CPU engine wants kernels that the package index does not have; its torch path needs nothing.
    environment.pop("SGLANG_USE_CPU_ENGINE", None)
    install_vllm_stand_in()


def install_vllm_stand_in() -> None:
    """Give SGLang the one name that it imports from vLLM on such a machine, and never calls there.

    Its rotary embedding asks for vLLM's kernel whenever no accelerator is known, then computes with torch.
    """

    def rotary_embedding(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError("vllm._custom_ops is a stand-in: this image computes on the CPU with torch alone")

    package, operations = types.ModuleType("vllm"), types.ModuleType("vllm._custom_ops")
    package.__spec__ = ModuleSpec("vllm", None, is_package=True)
    package.__path__ = []
    operations.__spec__ = ModuleSpec("vllm._custom_ops", None)
    operations.rotary_embedding = rotary_embedding  # type: ignore[attr-defined]
    package._custom_ops = operations  # type: ignore[attr-defined]
    sys.modules.setdefault("vllm", package)
    sys.modules.setdefault("vllm._custom_ops", operations)
