"""Text → YAML documents with a place for every field: what is wrong can be said with line and column.

JSON is YAML here. What is promised of the reading stands in `omni_operator.api.yaml_events`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from omni_operator.api.yaml_events import TAG, Path, YamlReader, trouble

MAX_BYTES = 3 * 1024 * 1024
"""An object of the Kubernetes API has at most about 1.5 MB."""
MAX_DEPTH = 60
MAX_VALUES = 200_000
MAX_NUMBER = 64

_SCALAR_TAGS = (None, "!", *(f"{TAG}{kind}" for kind in ("str", "int", "float", "bool", "null")))
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_CONSTANTS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
              "null": None, "Null": None, "NULL": None, "~": None, "": None}  # fmt: skip
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


@dataclass(frozen=True)
class Place:
    """A place in a file, counted from 1."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.source, self.line, self.column) if part not in (None, ""))


class BadInput(Exception):
    """The input cannot be read. The message says where, why, and what to do; never a traceback."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(f"{place}: {message}")
        self.message = message
        self.place = place


@dataclass(frozen=True)
class Document:
    """One document. `places` has the place of every field by its path, `()` for the whole."""

    data: Any
    places: Mapping[Path, Place]

    def place(self, path: Path) -> Place:
        """Of the field, or of the nearest that contains it."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]


def read(text: str, source: str) -> list[Document]:
    """All documents of a YAML or JSON text, empty ones left out. Raises BadInput."""
    if len(text) > MAX_BYTES:
        raise BadInput(f"has more than {MAX_BYTES:,} characters, too many for a manifest", Place(source))
    try:
        return _Reader(text, source).read()
    except yaml.YAMLError as error:
        what, line, column = trouble(error, text)
        raise BadInput(f"not valid YAML: {what}", Place(source, line, column)) from None
    except UnicodeError as error:
        raise BadInput(f"not valid YAML: {error}", Place(source)) from None


def decode(content: bytes, source: str) -> str:
    """UTF-8 text. Raises BadInput."""
    if len(content) > MAX_BYTES:
        raise BadInput(f"has more than {MAX_BYTES:,} bytes, too many for a manifest", Place(source))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"not UTF-8 text: byte {content[error.start]:#04x}", Place(source, line)) from None


def scalar(text: str) -> Any:
    """What an unquoted YAML value means: a number, a boolean, null or text. NaN and infinities are text."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) <= MAX_NUMBER and _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= MAX_NUMBER and _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


class _Reader(YamlReader):
    """Notes the place of every field. Numbers are YAML 1.2's, as Kubernetes reads them."""

    max_depth = MAX_DEPTH
    max_values = MAX_VALUES

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self._source = source
        self._places: dict[Path, Place] = {}

    def read(self) -> list[Document]:
        found = []
        for _, data in self.documents():
            if data is not None:
                found.append(Document(data, self._places))
            self._places = {}
        return found

    def seen(self, path: Path, event: Any) -> None:
        self._places.setdefault(path, self._place(event))

    def refuse(self, event: Any, message: str) -> NoReturn:
        raise BadInput(message, self._place(event))

    def scalar(self, event: Any) -> Any:
        if event.tag not in _SCALAR_TAGS:
            self.refuse_tag(event, event.tag)
        text: str = event.value
        if event.tag in ("!", f"{TAG}str") or not event.implicit[0]:
            return text
        if _NOT_FINITE.fullmatch(text):
            self.refuse(event, f"{text} is not a number that anything can be planned with")
        return scalar(text)

    def _place(self, event: Any) -> Place:
        return Place(self._source, event.start_mark.line + 1, event.start_mark.column + 1)
