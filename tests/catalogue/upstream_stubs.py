"""Lets sglang-omni's configuration classes be imported without torch, sglang and the rest of its GPU stack.

Importing a configuration class runs little code, but it names much: model classes, device mixins, HTTP clients. What
is named and never run is replaced here by hollow modules, so that a small environment (sglang-omni without its
dependencies, plus pydantic, msgspec, msgpack, pyzmq, PyYAML) can read every configuration in about two seconds.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

HOLLOW = frozenset(
    {
        "aiohttp", "av", "einops", "fastapi", "httpx", "huggingface_hub", "librosa", "numpy", "PIL", "pybase64",
        "safetensors", "scipy", "sglang", "soundfile", "starlette", "tokenizers", "torch", "torchaudio", "torchvision",
        "tqdm", "transformers", "triton", "typer", "uvicorn", "websockets", "xxhash",
    }
)  # fmt: skip
"""Top-level packages that are replaced where they are not installed."""


class _Thing:
    """Whatever was asked for: it can be called, indexed by attributes, and used as a decorator."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        del kwargs
        if self._name == "device_count":
            return 0  # A machine without GPUs: the layout must not depend on where this runs.
        return args[0] if len(args) == 1 and callable(args[0]) else _Thing(self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Thing(name)


class _HollowType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Thing(name)


class _CudaDevice:
    """What configurations ask of the platform: the catalogue describes NVIDIA GPUs."""

    device_type = "cuda"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda: name == "is_cuda"
        raise AttributeError(name)


class _HollowModule(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012  # makes it a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = _Thing(name)
        if name == "CudaDeviceMixin":
            value = _CudaDevice
        elif name[:1].isupper():
            value = _HollowType(name, (), {"__init__": lambda self, *args, **kwargs: None})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name.partition(".")[0] in HOLLOW:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _HollowModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def install() -> None:
    """Puts hollow modules behind the real ones: an installed package is used as it is."""
    sys.meta_path.append(_Finder())
