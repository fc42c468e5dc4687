"""What differs between two specs, in the words of `--set`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omni_operator.cli.live_parse import clean

MOST_VALUE = 40
"""Characters of a value: an engine's argument may be a whole document."""
_NOTHING = object()


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """One for each field, such as `stages[thinker].gpuMemory 78% → 80%`, in the order of the later spec."""
    return list(_changes("", before, after))


def in_short(found: list[str], most: int = 3) -> str:
    """The first of them, and how many more there are."""
    more = f"; and {len(found) - most} more" if len(found) > most else ""
    return f"{'; '.join(found[:most])}{more}" if found else "nothing"


def _changes(path: str, before: Any, after: Any) -> Iterator[str]:
    old, new = _named(before), _named(after)
    if old is None or new is None:
        if before != after:
            yield _words(path, before, after)
        return
    by_name = isinstance(before, list) or isinstance(after, list)
    for key in (*new, *(key for key in old if key not in new)):
        inner = f"{path}[{key}]" if by_name else f"{path}.{key}" if path else str(key)
        one, other = old.get(key, _NOTHING), new.get(key, _NOTHING)
        if one is not _NOTHING and other is not _NOTHING:
            yield from _changes(inner, one, other)
        elif by_name or not _named(one if other is _NOTHING else other):
            yield _words(inner, one, other)
        else:
            yield from _changes(inner, {} if one is _NOTHING else one, {} if other is _NOTHING else other)


def _named(value: Any) -> Mapping[str, Any] | None:
    """Parts by name: of a mapping, or of a list whose items all have a name, which is none of theirs then."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and all(isinstance(item, Mapping) and "name" in item for item in value):
        return {str(item["name"]): {key: part for key, part in item.items() if key != "name"} for item in value}
    return None


def _words(path: str, before: Any, after: Any) -> str:
    if before is _NOTHING:
        return f"{path} added" if _named(after) is not None else f"{path} set to {_value(after)}"
    if after is _NOTHING:
        return f"{path} removed"
    return f"{path} {_value(before)} → {_value(after)}"


def _value(value: Any) -> str:
    text = clean(str(value).lower() if isinstance(value, bool) else value)
    return text if len(text) <= MOST_VALUE else f"{text[: MOST_VALUE - 1]}…"
