"""Typed readers of plain data. Each takes a mapping, a key and the path so far, and raises ImportProblem with the path.

Units: shares are `Fraction` of a card in (0, 1]; amounts are bytes. Floats never occur (see `document`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from omni_operator.api.quantities import Amount, Share
from omni_operator.importing.notes import ImportProblem

Data = Mapping[str, Any]

MAX_DEVICE = 1023
"""Highest device index that is taken for one. Beyond it, it is a typing error."""
MAX_COUNT = 1024
_UPSTREAM_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_KUBERNETES_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*")
_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?\s*")


def mapping(data: Data, key: str, path: str = "") -> Data:
    """The mapping at `key`; empty where it is missing or null."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ImportProblem(f"{at(path, key)} must be a mapping, not {shown(value)}")
    return value


def mappings(data: Data, key: str, path: str = "") -> list[Data]:
    """The list of mappings at `key`; empty where it is missing or null."""
    value = data.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ImportProblem(f"{at(path, key)} must be a list, not {shown(value)}")
    for i, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise ImportProblem(f"{at(path, key)}[{i}] must be a mapping, not {shown(entry)}")
    return value


def text(data: Data, key: str, path: str = "") -> str | None:
    """The text at `key`. Numbers and booleans are not text."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ImportProblem(f"{at(path, key)} must be text, not {shown(value)}")
    return value.strip()


def on_off(data: Data, key: str, path: str = "") -> str | None:
    """`on`, `off` or another word. Unquoted, YAML 1.1 reads on and off as booleans."""
    value = data.get(key)
    if isinstance(value, bool):
        return "on" if value else "off"
    return text(data, key, path)


def count(data: Data, key: str, path: str = "", least: int = 1) -> int | None:
    """A whole number of things."""
    value = data.get(key)
    if value is None:
        return None
    number = value
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,6}\s*", value):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MAX_COUNT:
        raise ImportProblem(f"{at(path, key)} must be a whole number from {least} to {MAX_COUNT}, not {shown(value)}")
    return number


def share(data: Data, key: str, path: str = "") -> Share | None:
    """A fraction of a card. Raises ImportProblem for anything outside (0, 1]."""
    value = data.get(key)
    if value is None:
        return None
    number = _number(value)
    if number is None:
        raise ImportProblem(
            f"{at(path, key)} must be a fraction of the card such as 0.78, not {shown(value)}{_percent_hint(value)}"
        )
    if not 0 < number <= 1:
        hint = f"; for {number}% write {number / 100}" if 1 < number <= 100 else ""
        raise ImportProblem(f"{at(path, key)} must be above 0 and at most 1, not {shown(value)}{hint}")
    return Share(Fraction(number))


def amount(data: Data, key: str, path: str = "") -> tuple[Amount | None, bool]:
    """An amount of memory, and whether it is spelled as upstream spells it (a number of bytes, or 9GiB)."""
    value = data.get(key)
    if value is None:
        return None, True
    if isinstance(value, int) and not isinstance(value, bool):
        return Amount(_positive(value, value, at(path, key))), True
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ImportProblem(f"{at(path, key)} must be bytes or a size such as 9GiB, not {shown(value)}")
    number, unit = match.groups()
    scale = _UPSTREAM_UNITS.get(unit) or _KUBERNETES_UNITS.get(unit) or (1 if unit == "" else None)
    if scale is None:
        guess = f"{number}{unit[0].upper()}iB" if unit[:1].upper() in "KMGT" else "a size such as 9GiB"
        raise ImportProblem(
            f"{at(path, key)}: {shown(value)} has no unit that is read here; write {guess} (1 GiB is 2**30 bytes)"
        )
    plain = re.fullmatch(r"[0-9]+", number) is not None and unit in _UPSTREAM_UNITS and value == number + unit
    return Amount(_positive(int(Fraction(number) * scale), value, at(path, key))), plain


def devices(data: Data, key: str, path: str = "") -> tuple[int, ...] | None:
    """Logical device indexes: `0`, `"0,1"` or `[0, 1]`; `cpu` gives none. Missing or empty gives None."""
    value = data.get(key)
    if value is None or value == "" or value == []:
        return None
    if value == "cpu":
        return ()
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    return tuple(_device(part, at(path, key)) for part in parts if part != "")


def _device(value: Any, path: str) -> int:
    if isinstance(value, str):
        word = value.strip().removeprefix("cuda:").removeprefix("npu:").removeprefix("xpu:")
        value = int(word) if re.fullmatch(r"[0-9]{1,4}", word) else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DEVICE:
        raise ImportProblem(
            f"{path}: {shown(value)} is not a logical device index; they count from 0 among the visible GPUs, "
            "and neither UUIDs nor variables can be planned with"
        )
    return value


def unknown_keys(data: Data, known: Iterable[str]) -> dict[str, str]:
    """Keys that are not known, each with what was probably meant, or nothing."""
    names = sorted(known)
    return {key: next(iter(difflib.get_close_matches(key, names, n=1)), "") for key in data if key not in names}


def plain(value: Any) -> Any:
    """The same data with ordinary numbers, for arguments that are handed on as they are."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and "." not in str(value) else float(value)
    return value


def at(path: str, key: str) -> str:
    """The path of a key."""
    return f"{path}.{key}" if path else key


def shown(value: Any) -> str:
    """A value as a message shows it: short, and in the file's own words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    words = str(value)
    return repr(words if len(words) <= 60 else words[:57] + "...") if isinstance(value, str) else words[:60]


def _number(value: Any) -> Decimal | None:
    """A number, also where YAML 1.1 left one such as 1e-1 as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | Decimal):
        return Decimal(value)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        try:
            return Decimal(value.strip())
        except InvalidOperation:
            return None
    return None


def _percent_hint(value: Any) -> str:
    if isinstance(value, str) and value.rstrip().endswith("%"):
        number = _number(value.rstrip()[:-1])
        if number is not None and 0 < number <= 100:
            return f"; write {number / 100}"
        return "; it is no percentage of a card either"
    return ""


def _positive(number: int, value: Any, path: str) -> int:
    if not 0 < number < 2**63:
        raise ImportProblem(f"{path} must be above 0 and below 8 EiB, not {shown(value)}")
    return number
