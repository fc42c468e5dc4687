"""A model's folder, read safely: whatever it holds, nothing outside of it is opened, and a bad file is one clear error.

A folder may come from anywhere, so its files are hostile: links that lead elsewhere, pipes that never end, lengths that
would fill the memory, JSON that nests without end. Sizes are bounded before anything is read.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

MAX_JSON = 32 * 2**20
"""Bytes of config.json or of an index. The index of the biggest public model has less than 20 MiB."""


class CheckpointError(ValueError):
    """A model folder cannot be read; the message names the file and what is wrong with it."""


class ModelFolder:
    """A folder with a model's files. Names are relative, and must stay inside."""

    def __init__(self, path: Path | str) -> None:
        """Raises CheckpointError where `path` is no folder."""
        try:
            self.path = Path(path).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{str(path)[:200]!r} is not a readable folder") from error
        if not self.path.is_dir():
            raise CheckpointError(f"{str(path)[:200]!r} is not a folder")
        self._boundary = _hub_repository(self.path) or self.path

    def has(self, name: str) -> bool:
        """Whether there is such an entry, readable or not."""
        return os.path.lexists(self.path / name)

    def names(self, suffix: str) -> tuple[str, ...]:
        """Entries that end so, sorted."""
        try:
            return tuple(sorted(name for name in os.listdir(self.path) if name.endswith(suffix)))
        except OSError as error:
            raise CheckpointError(f"the folder cannot be listed: {error.strerror}") from error

    def open(self, name: str) -> int:
        """A file descriptor of a regular file inside the folder; the caller closes it. Raises CheckpointError."""
        target = self._inside(name)
        try:
            # Not blocking: opening a pipe would wait for its writer for ever.
            descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{shown(name)} cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CheckpointError(f"{shown(name)} is not a regular file")
        return descriptor

    def json(self, name: str) -> dict[str, Any]:
        """An object from a JSON file. Raises CheckpointError."""
        descriptor = self.open(name)
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            if size > MAX_JSON:
                raise CheckpointError(f"{shown(name)} has {size} bytes, more than the {MAX_JSON} that are read")
            return parse_object(file.read(MAX_JSON + 1), name)

    def _inside(self, name: str) -> Path:
        parts = name.split("/")
        if not name or name.startswith("/") or "\\" in name or "\0" in name or any(p in ("", ".", "..") for p in parts):
            raise CheckpointError(f"{shown(name)} is not a plain file name inside the folder")
        try:
            target = (self.path / name).resolve(strict=True)
        except FileNotFoundError as error:
            raise CheckpointError(f"{shown(name)} is missing") from error
        except (OSError, RuntimeError) as error:
            raise CheckpointError(f"{shown(name)} cannot be followed") from error
        if not target.is_relative_to(self._boundary):
            raise CheckpointError(f"{shown(name)} is a link that leads out of the folder")
        return target


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object; NaN, infinities, duplicate keys, other values and endless nesting are refused."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{shown(name)} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{shown(name)} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise CheckpointError(f"{shown(name)} nests too deeply") from error
    except ValueError as error:
        raise CheckpointError(f"{shown(name)} is not acceptable JSON: {str(error)[:120]}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{shown(name)} does not hold a JSON object")
    return value


def shown(name: str) -> str:
    """A name as a message shows it: escaped and short, for it may come out of a hostile file."""
    text = repr(name)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _hub_repository(path: Path) -> Path | None:
    """The repository's folder in a hub cache, whose snapshots are links to its own blobs."""
    repository = path.parent.parent
    if path.parent.name == "snapshots" and repository.name.startswith("models--"):
        return repository
    return None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is there twice")
    return result
