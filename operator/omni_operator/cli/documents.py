"""Text → YAML documents with a place for every field: what is wrong can be said with line and column.

Promises: plain data only, no code run, bounded time and memory whatever the input. Built from the parser's events, so
that depth, aliases, duplicate keys and sheer size are judged before anything is built. JSON is YAML here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

MAX_BYTES = 3 * 1024 * 1024
"""An object of the Kubernetes API has at most about 1.5 MB."""
MAX_DEPTH = 60
MAX_VALUES = 200_000
"""Values after aliases are followed, so that a few lines cannot become gigabytes."""
MAX_NUMBER = 64

Path = tuple[str | int, ...]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
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
        raise BadInput(f"has {len(text):,} characters; a manifest has at most {MAX_BYTES:,}", Place(source))
    try:
        return list(_Reader(yaml.parse(text, Loader=_LOADER), source).documents())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark is not None and error.context_mark is not None and mark.line >= len(text.splitlines()):
            mark = error.context_mark  # What is not closed at the end is wrong where it was opened.
        what = " ".join(part for part in (error.context, error.problem) if part)
        place = Place(source) if mark is None else Place(source, mark.line + 1, mark.column + 1)
        raise BadInput(f"not valid YAML: {what}", place) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        raise BadInput(f"not valid YAML: {error.reason}", Place(source, line)) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise BadInput(f"not valid YAML: {error}", Place(source)) from None


def decode(content: bytes, source: str) -> str:
    """UTF-8 text. Raises BadInput."""
    if len(content) > MAX_BYTES:
        raise BadInput(f"has {len(content):,} bytes; a manifest has at most {MAX_BYTES:,}", Place(source))
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


@dataclass
class _Reader:
    """Builds documents from the parser's events. One object per text."""

    events: Iterator[Any]
    source: str
    left: int = MAX_VALUES
    anchors: dict[str, tuple[Any, int]] = field(default_factory=dict)
    """Value and number of values of each anchor."""
    places: dict[Path, Place] = field(default_factory=dict)

    def documents(self) -> Iterator[Document]:
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                self.places, self.anchors = {}, {}
                data = self._value(next(self.events), ())
                if data is not None:
                    yield Document(data, self.places)

    def _value(self, event: Any, path: Path) -> Any:
        self.places.setdefault(path, self._place(event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self.left
        self._spend(1, event)
        if len(path) > MAX_DEPTH:
            self._refuse(event, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.MappingStartEvent):
            value: Any = self._mapping(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(event, path)
        else:
            value = self._scalar(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, before - self.left)
        return value

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self.anchors:
            self._refuse(event, f"the alias *{event.anchor} has no anchor before it, or stands within its own")
        value, size = self.anchors[event.anchor]
        self._spend(size, event)
        return value

    def _mapping(self, start: Any, path: Path) -> dict[str, Any]:
        self._check_tag(start, "map")
        result: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "a key must be plain text")
            key: str = event.value
            if key in result:
                self._refuse(event, f"{key!r} is given twice")
            self.places[(*path, key)] = self._place(event)
            value = self._value(next(self.events), (*path, key))
            if key == "<<":
                self._merge(inherited, value, event)
            else:
                result[key] = value
        return {**inherited, **result} if inherited else result

    def _merge(self, inherited: dict[str, Any], value: Any, event: Any) -> None:
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                self._refuse(event, "<< merges mappings only")
            self._spend(len(part), event)
            for key, merged in part.items():
                inherited.setdefault(key, merged)

    def _sequence(self, start: Any, path: Path) -> list[Any]:
        self._check_tag(start, "seq")
        result: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            result.append(self._value(event, (*path, len(result))))
        return result

    def _scalar(self, event: Any) -> Any:
        if event.tag not in (None, "!", *(f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null"))):
            self._refuse(event, f"the tag {event.tag[:60]} is not supported; only plain data is read")
        text: str = event.value
        if event.tag in ("!", f"{_TAG}str") or not event.implicit[0]:
            return text
        if _NOT_FINITE.fullmatch(text):
            self._refuse(event, f"{text} is not a number that anything can be planned with")
        return scalar(text)

    def _check_tag(self, event: Any, expected: str) -> None:
        if event.tag not in (None, "!", _TAG + expected):
            self._refuse(event, f"the tag {event.tag[:60]} is not supported; only plain data is read")

    def _spend(self, values: int, event: Any) -> None:
        self.left -= values
        if self.left < 0:
            self._refuse(event, f"more than {MAX_VALUES:,} values once aliases are followed")

    def _place(self, event: Any) -> Place:
        return Place(self.source, event.start_mark.line + 1, event.start_mark.column + 1)

    def _refuse(self, event: Any, message: str) -> NoReturn:
        raise BadInput(message, self._place(event))
