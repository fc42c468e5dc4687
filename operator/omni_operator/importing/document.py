"""Text → plain data, safely: one YAML or JSON document of mappings, lists, text, numbers, booleans and null.

Promises: no traceback, no code run, bounded time and memory whatever the input. Built from the parser's events rather
than its objects, so that size, depth, aliases and duplicate keys are judged before anything is built. Decimal numbers
become `Decimal` from their text, so that no float ever stands for a share. Mapping keys are text, as they were written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import yaml

from omni_operator.importing.notes import ImportProblem

MAX_BYTES = 1024 * 1024
"""Files of this kind have a few KB; the longest published one has 12."""
MAX_DEPTH = 40
"""Levels of nesting; published files have up to 10."""
MAX_VALUES = 50_000
"""Values after aliases are followed, so that a few lines cannot become gigabytes."""
MAX_NUMBER = 64
"""Characters of a number. Longer ones only cost time."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STANDARD = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*|[-+]?0x[0-9a-fA-F_]+|[-+]?0o?[0-7_]+|[-+]?0b[01_]+")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?")
_TRUE = frozenset({"y", "yes", "true", "on"})
_FALSE = frozenset({"n", "no", "false", "off"})


@dataclass
class _Budget:
    """Counts values, so that aliases cannot multiply without end."""

    left: int = MAX_VALUES
    sizes: dict[str, int] = field(default_factory=dict)
    """Values within each anchor."""

    def spend(self, values: int, where: _Where) -> None:
        self.left -= values
        if self.left < 0:
            where.refuse(f"more than {MAX_VALUES:,} values once aliases are followed")


@dataclass(frozen=True)
class _Where:
    """A place in a text."""

    source: str
    mark: Any

    def refuse(self, message: str) -> NoReturn:
        line = None if self.mark is None else self.mark.line + 1
        column = None if self.mark is None else self.mark.column + 1
        raise ImportProblem(message, self.source, line, column)


def decode(content: bytes, source: str = "") -> str:
    """UTF-8 text, with or without a byte-order mark. Raises ImportProblem."""
    if len(content) > MAX_BYTES:
        raise ImportProblem(
            f"has {len(content):,} bytes; a configuration file may have {MAX_BYTES:,}. This is some other file", source
        )
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ImportProblem("is UTF-16 text; save it as UTF-8", source)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ImportProblem(
            f"is not UTF-8 text: byte {error.start} is {content[error.start]:#04x}", source, line
        ) from None


def parse(text: str, source: str = "") -> dict[str, Any]:
    """The one mapping that a YAML or JSON text holds. Raises ImportProblem."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ImportProblem(f"has more than {MAX_BYTES:,} bytes, too many for a configuration file", source)
    data = _parse_json(text, source) if text.lstrip()[:1] in ("{", "[") else _parse_yaml(text, source)
    if not isinstance(data, dict):
        kind = "nothing but comments" if data is None else {list: "a list"}.get(type(data), "a single value")
        raise ImportProblem(f"holds {kind}; a configuration file is a mapping of fields to values", source)
    return data


def _parse_json(text: str, source: str) -> Any:
    """JSON is read as JSON; what only looks like it, such as `{a: 1}`, is YAML's flow style."""
    if _depth_of(text) > MAX_DEPTH:
        raise ImportProblem(f"is nested more than {MAX_DEPTH} levels deep", source)
    try:
        data = json.loads(
            text,
            parse_float=_json_number,
            parse_int=_json_integer,
            parse_constant=_no_constant,
            object_pairs_hook=_unique,
        )
    except json.JSONDecodeError as error:
        if source.endswith(".json"):
            raise ImportProblem(f"is not valid JSON: {error.msg}", source, error.lineno, error.colno) from None
        return _parse_yaml(text, source)
    except ImportProblem as problem:
        raise ImportProblem(problem.message, source) from None
    except RecursionError:
        raise ImportProblem(f"is nested more than {MAX_DEPTH} levels deep", source) from None
    return data


def _depth_of(text: str) -> int:
    """Deepest nesting of brackets outside of quotes."""
    depth = deepest = 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text):
        if token[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in "]}":
            depth -= 1
    return deepest


def _json_number(text: str) -> Decimal:
    return _decimal(text, _Where("", None))


def _json_integer(text: str) -> int | str:
    return _integer(text, _Where("", None))


def _no_constant(text: str) -> NoReturn:
    raise ImportProblem(f"{text} is not a number that anything can be planned with")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ImportProblem(f"the key {twice!r} is given twice")
    return result


def _parse_yaml(text: str, source: str) -> Any:
    try:
        return _Builder(yaml.parse(text, Loader=_Loader), source).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        _Where(source, mark).refuse(f"is not valid YAML: {what}")
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        raise ImportProblem(f"is not valid YAML: {error.reason} ({error.character!r})", source, line) from None
    except yaml.YAMLError as error:
        raise ImportProblem(f"is not valid YAML: {error}", source) from None
    except UnicodeEncodeError:
        raise ImportProblem("is not valid Unicode text", source) from None


class _Builder:
    """Builds data from events. One object per text."""

    def __init__(self, events: Iterator[Any], source: str) -> None:
        self._events = events
        self._source = source
        self._anchors: dict[str, Any] = {}
        self._budget = _Budget()
        self._resolver: Any = yaml.resolver.Resolver()

    def document(self) -> Any:
        result = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._at(event).refuse(_second(result))
                result = self._value(next(self._events), 0)
        return result

    def _at(self, event: Any) -> _Where:
        return _Where(self._source, event.start_mark)

    def _value(self, event: Any, depth: int) -> Any:
        before = self._budget.left
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        self._budget.spend(1, self._at(event))
        if depth > MAX_DEPTH:
            self._at(event).refuse(f"is nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.MappingStartEvent):
            result: Any = self._mapping(event, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            result = self._sequence(event, depth)
        else:
            result = self._scalar(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = result
            self._budget.sizes[event.anchor] = before - self._budget.left
        return result

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            self._at(event).refuse(f"the alias *{event.anchor} has no anchor before it, or stands within its own")
        self._budget.spend(self._budget.sizes[event.anchor], self._at(event))
        return self._anchors[event.anchor]

    def _mapping(self, start: Any, depth: int) -> dict[str, Any]:
        self._check_tag(start, "map")
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            value = self._value(next(self._events), depth + 1)
            if key == "<<":
                self._merge(merged, value, event)
            elif key in result:
                self._at(event).refuse(f"the key {key!r} is given twice in one mapping")
            else:
                result[key] = value
        return {**merged, **result} if merged else result

    def _merge(self, merged: dict[str, Any], value: Any, event: Any) -> None:
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                self._at(event).refuse("<< merges mappings only")
            for key, inherited in part.items():
                merged.setdefault(key, inherited)
            self._budget.spend(len(part), self._at(event))

    def _key(self, event: Any) -> str:
        if isinstance(event, yaml.AliasEvent):
            event_value = self._alias(event)
            if not isinstance(event_value, str):
                self._at(event).refuse("a key must be plain text")
            return event_value
        if not isinstance(event, yaml.ScalarEvent):
            self._at(event).refuse("a key must be plain text, not a list or a mapping")
        text: str = event.value
        if event.anchor is not None:
            self._anchors[event.anchor] = text
            self._budget.sizes[event.anchor] = 1
        return text

    def _sequence(self, start: Any, depth: int) -> list[Any]:
        self._check_tag(start, "seq")
        result = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            result.append(self._value(event, depth + 1))
        return result

    def _check_tag(self, event: Any, expected: str) -> None:
        if event.tag not in (None, "!", _STANDARD + expected):
            self._at(event).refuse(f"the tag {_short(event.tag)} is not supported; only plain data is read")

    def _scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
        where = self._at(event)
        kind = tag.removeprefix(_STANDARD)
        if kind in _TEXT:
            return event.value
        if kind == "null":
            return None
        if kind not in _NUMBERS:
            where.refuse(f"the tag {_short(tag)} is not supported; only plain data is read")
        return _NUMBERS[kind](event.value, where)


def _boolean(text: str, where: _Where) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        where.refuse(f"{_cut(text)} is not a boolean")
    return text.lower() in _TRUE


def _integer(text: str, where: _Where) -> int | str:
    """YAML 1.1 reads `1:30` as 90 and `010` as 8; no field of these files means that, so such text stays text."""
    if len(text) > MAX_NUMBER:
        where.refuse(f"{_cut(text)} is too long for a number")
    if _INTEGER.fullmatch(text) is None:
        return text
    digits = text.replace("_", "")
    try:
        return int(digits) if digits.lstrip("+-").isdigit() else int(digits, 0)
    except ValueError:
        where.refuse(f"{_cut(text)} is not a whole number")


def _decimal(text: str, where: _Where) -> Decimal:
    lowered = text.lower().lstrip("+-.")
    if lowered in ("inf", "nan", "infinity"):
        where.refuse(f"{_cut(text)} is not a number that anything can be planned with")
    if len(text) > MAX_NUMBER or _FLOAT.fullmatch(text) is None:
        where.refuse(f"{_cut(text)} is not a decimal number")
    try:
        number = Decimal(text.replace("_", ""))
    except InvalidOperation:
        where.refuse(f"{_cut(text)} is not a decimal number")
    if number and not -400 < number.adjusted() < 400:
        where.refuse(f"{_cut(text)} is out of every range that a configuration uses")
    return number


_TEXT = frozenset({"str", "timestamp", "value", "merge"})
"""A date stays the text that it is."""
_NUMBERS: dict[str, Callable[[str, _Where], Any]] = {"bool": _boolean, "int": _integer, "float": _decimal}


def _second(first: Any) -> str:
    """Why a second document is refused: several in one file are Kubernetes' way."""
    if isinstance(first, dict) and "apiVersion" in first and "kind" in first:
        return f"looks like Kubernetes manifests, the first a {_cut(str(first['kind']))}, not like a pipeline file"
    return "a second document starts here; import one document at a time"


def _short(tag: str) -> str:
    return _cut("!!" + tag.removeprefix(_STANDARD) if tag.startswith(_STANDARD) else tag)


def _cut(text: str) -> str:
    """A value as it was written, short enough for a message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
