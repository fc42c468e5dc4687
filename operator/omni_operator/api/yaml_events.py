"""A YAML or JSON text → plain data, safely, whoever wrote it: what OmniModels and imported files are both read with.

Promises: plain data only, no code run, bounded time and memory. Built from the parser's events, so that depth, aliases,
duplicate keys and sheer size are judged before anything is built. A reader says what a scalar means and how to refuse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TAG = "tag:yaml.org,2002:"

Path = tuple[str | int, ...]


class YamlReader(ABC):
    """Builds data from events. One object per text."""

    max_depth: int
    max_values: int
    """Values after aliases are followed, so that a few lines cannot become gigabytes."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=LOADER)
        self._left = self.max_values
        self._anchors: dict[str, tuple[Any, int]] = {}
        """Value and number of values of each anchor."""

    @abstractmethod
    def refuse(self, event: Any, message: str) -> NoReturn:
        """Ends the reading, with the event's place."""

    @abstractmethod
    def scalar(self, event: Any) -> Any:
        """What a scalar means."""

    def seen(self, path: Path, event: Any) -> None:
        """Called with the place of every field, a key's before its value's."""
        del path, event

    def documents(self) -> Iterator[tuple[Any, Any]]:
        """Each document with the event that it starts with."""
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                yield event, self._value(next(self._events), ())

    def _value(self, event: Any, path: Path) -> Any:
        self.seen(path, event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._left
        self._spend(1, event)
        if len(path) > self.max_depth:
            self.refuse(event, f"nested more than {self.max_depth} levels deep")
        if isinstance(event, yaml.MappingStartEvent):
            value: Any = self._mapping(event, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(event, path)
        else:
            value = self.scalar(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, before - self._left)
        return value

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            self.refuse(event, f"the alias *{event.anchor} has no anchor before it, or stands within its own")
        value, size = self._anchors[event.anchor]
        self._spend(size, event)
        return value

    def _mapping(self, start: Any, path: Path) -> dict[str, Any]:
        self._check_tag(start, "map")
        result: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            if key in result:
                self.refuse(event, f"{key!r} is given twice")
            self.seen((*path, key), event)
            value = self._value(next(self._events), (*path, key))
            if key == "<<":
                self._merge(inherited, value, event)
            else:
                result[key] = value
        return {**inherited, **result} if inherited else result

    def _key(self, event: Any) -> str:
        value = self._alias(event) if isinstance(event, yaml.AliasEvent) else getattr(event, "value", None)
        if not isinstance(value, str):
            self.refuse(event, "a key must be plain text")
        if isinstance(event, yaml.ScalarEvent) and event.anchor is not None:
            self._anchors[event.anchor] = (value, 1)
        return value

    def _merge(self, inherited: dict[str, Any], value: Any, event: Any) -> None:
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                self.refuse(event, "<< merges mappings only")
            self._spend(len(part), event)
            for key, merged in part.items():
                inherited.setdefault(key, merged)

    def _sequence(self, start: Any, path: Path) -> list[Any]:
        self._check_tag(start, "seq")
        result: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            result.append(self._value(event, (*path, len(result))))
        return result

    def _check_tag(self, event: Any, expected: str) -> None:
        if event.tag not in (None, "!", TAG + expected):
            self.refuse_tag(event, event.tag)

    def refuse_tag(self, event: Any, tag: str) -> NoReturn:
        """Only plain data is read."""
        shown = "!!" + tag.removeprefix(TAG) if tag.startswith(TAG) else tag
        self.refuse(event, f"the tag {shown[:60]!r} is not supported; only plain data is read")

    def _spend(self, values: int, event: Any) -> None:
        self._left -= values
        if self._left < 0:
            self.refuse(event, f"more than {self.max_values:,} values once aliases are followed")


def trouble(error: yaml.YAMLError, text: str) -> tuple[str, int | None, int | None]:
    """What a parser's error says, and where: line and column counted from 1."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        if mark is not None and error.context_mark is not None and mark.line >= len(text.splitlines()):
            mark = error.context_mark  # What is not closed at the end is wrong where it was opened.
        what = " ".join(part for part in (error.context, error.problem) if part)
        return what, *((None, None) if mark is None else (mark.line + 1, mark.column + 1))
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        return str(error.reason), line, None
    return str(error), None, None
