"""Headers of safetensors files: names, dtypes and sizes of tensors, without loading one.

The format (huggingface/safetensors): 8 bytes with the length of the header, little-endian; a JSON object by tensor
name of dtype, shape and data offsets; then the data. Every size is checked against the file, so that a header cannot
lie about it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard

from omni_operator.catalogue.folder import CheckpointError, ModelFolder, parse_object, shown

MAX_HEADER = 64 * 2**20
"""Bytes. The format's own limit is 100 MB; the biggest public headers have a few."""
MAX_DIMENSIONS = 16
BITS: Mapping[str, int] = {
    "F64": 64, "F32": 32, "BF16": 16, "F16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64,
    "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "C64": 64,
}  # fmt: skip
NAMES: Mapping[str, str] = {
    "F64": "fp64", "F32": "fp32", "BF16": "bf16", "F16": "fp16", "F8_E4M3": "fp8", "F8_E5M2": "fp8", "F4": "fp4",
    "I8": "int8", "U8": "int8", "I32": "int32", "I64": "int64",
}  # fmt: skip
"""Our names of the common dtypes."""


@dataclass(frozen=True)
class Tensor:
    """A tensor, as its header declares it."""

    name: str
    dtype: str
    """As the format spells it."""
    parameters: int
    size: int
    """Bytes."""


def read_tensors(folder: ModelFolder, name: str) -> tuple[Tensor, ...]:
    """All tensors of one file. Raises CheckpointError."""
    descriptor = folder.open(name)
    with os.fdopen(descriptor, "rb") as file:
        total = os.fstat(descriptor).st_size
        start = file.read(8)
        if len(start) < 8:
            raise CheckpointError(f"{shown(name)} is too short for a safetensors file")
        length = int.from_bytes(start, "little")
        if length > MAX_HEADER:
            raise CheckpointError(f"{shown(name)} declares a header of {length} bytes; at most {MAX_HEADER} are read")
        if length < 2 or 8 + length > total:
            raise CheckpointError(f"{shown(name)} declares a header of {length} bytes, but has {total} in all")
        header = parse_object(file.read(length), f"{name} (header)")
    return tuple(_tensors(header, name, total - 8 - length))


def _tensors(header: dict[str, Any], file: str, data: int) -> Iterator[Tensor]:
    spans = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor, begin = _tensor(name, entry, file)
        if begin + tensor.size > data:
            raise CheckpointError(f"{shown(file)}: tensor {shown(name)} ends behind the end of the file (cut off?)")
        spans.append((begin, tensor.size))
        yield tensor
    end = 0
    for begin, size in sorted(spans):
        if begin < end:
            raise CheckpointError(f"{shown(file)}: tensors overlap")
        end = begin + size


def _tensor(name: str, entry: Any, file: str) -> tuple[Tensor, int]:
    where = f"{shown(file)}: tensor {shown(name)}"
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where} is not described by an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise CheckpointError(f"{where} has an unknown dtype")
    if not _whole_numbers(shape) or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(f"{where} has a shape that cannot be")
    if not _whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has data_offsets that cannot be")
    parameters = prod(shape)
    size = offsets[1] - offsets[0]
    if size != -(-parameters * BITS[dtype] // 8):
        raise CheckpointError(f"{where} has {size} bytes, which its shape and dtype do not give")
    return Tensor(name, dtype, parameters, size), offsets[0]


def _whole_numbers(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**53 for item in value)
