"""Text → plain data, safely: one YAML or JSON document of mappings, lists, text, numbers, booleans and null.

Decimal numbers become `Decimal` from their text, so that no float ever stands for a share. Mapping keys are text, as
they were written. What is promised of the reading stands in `omni_operator.api.yaml_events`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import yaml

from omni_operator.api.yaml_events import TAG, YamlReader, trouble
from omni_operator.importing.notes import ImportProblem

MAX_BYTES = 1024 * 1024
"""Files of this kind have a few KB; the longest published one has 12."""
MAX_DEPTH = 40
"""Levels of nesting; published files have up to 10."""
MAX_VALUES = 50_000
"""Values after aliases are followed, so that a few lines cannot become gigabytes."""
MAX_NUMBER = 64
"""Characters of a number. Longer ones only cost time."""

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*|[-+]?0x[0-9a-fA-F_]+|[-+]?0o?[0-7_]+|[-+]?0b[01_]+")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?")
_TRUE = frozenset({"y", "yes", "true", "on"})
_FALSE = frozenset({"n", "no", "false", "off"})


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
        return _Reader(text, source).document()
    except yaml.YAMLError as error:
        what, line, column = trouble(error, text)
        raise ImportProblem(f"is not valid YAML: {what}", source, line, column) from None
    except UnicodeEncodeError:
        raise ImportProblem("is not valid Unicode text", source) from None


class _Reader(YamlReader):
    """One document, its scalars as PyYAML resolves them (YAML 1.1), as both engines read their files."""

    max_depth = MAX_DEPTH
    max_values = MAX_VALUES

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self._source = source
        self._resolver: Any = yaml.resolver.Resolver()

    def document(self) -> Any:
        """The only document; None where there is none."""
        found: list[Any] = []
        for start, data in self.documents():
            if found:
                self.refuse(start, _second(found[0]))
            found.append(data)
        return found[0] if found else None

    def refuse(self, event: Any, message: str) -> NoReturn:
        _Where(self._source, event.start_mark).refuse(message)

    def scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
        kind = tag.removeprefix(TAG)
        if kind in _TEXT:
            return event.value
        if kind == "null":
            return None
        if kind not in _NUMBERS:
            self.refuse_tag(event, tag)
        return _NUMBERS[kind](event.value, _Where(self._source, event.start_mark))


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


def _cut(text: str) -> str:
    """A value as it was written, short enough for a message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
