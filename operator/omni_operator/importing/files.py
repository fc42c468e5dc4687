"""Reads a file, and nothing outside the folder that was given: the only input of this package.

A `base_config` is followed only where its real path, symbolic links resolved, stays inside that folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omni_operator.importing.document import MAX_BYTES, decode, parse
from omni_operator.importing.notes import ImportProblem

Read = Callable[[str, str], tuple[str, Mapping[str, Any]]]
"""(name of the file that refers, reference) → (name of the file found, its data)."""

MAX_BASES = 16
"""Files in one chain of base_config."""


def read_file(path: Path, shown: str) -> dict[str, Any]:
    """The document in a file. Raises ImportProblem, whatever is wrong with it."""
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ImportProblem(f"cannot be read: {getattr(error, 'strerror', None) or error}", shown) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ImportProblem("is not a regular file", shown)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ImportProblem(f"cannot be read: {error.strerror}", shown) from None
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise ImportProblem(
            f"has {status.st_size:,} bytes; a configuration file may have {MAX_BYTES:,}. This is some other file", shown
        )
    return parse(decode(content, shown), shown)


def reader(root: Path) -> Read:
    """Follows references within `root`, an existing folder."""
    real_root = root.resolve()

    def read(referrer: str, reference: str) -> tuple[str, Mapping[str, Any]]:
        if "\0" in reference:
            raise ImportProblem("base_config is not a path", referrer)
        path = Path(reference) if os.path.isabs(reference) else root / Path(referrer).parent / reference
        try:
            real = path.resolve()
        except (OSError, RuntimeError):
            raise ImportProblem(f"base_config {reference!r} cannot be followed", referrer) from None
        if not real.is_relative_to(real_root):
            raise ImportProblem(
                f"base_config {reference!r} leads out of the folder {root}; only files inside of it are read", referrer
            )
        name = os.path.relpath(os.path.abspath(path), os.path.abspath(root))
        return name, read_file(real, name)

    return read


def no_files(referrer: str, reference: str) -> tuple[str, Mapping[str, Any]]:
    """For text that came from no folder."""
    raise ImportProblem(f"base_config {reference!r} cannot be read, since no folder was given", referrer)
