"""Memory amounts and shares, exact: bytes are integers, shares are fractions. No float decides anything.

Two spellings of a budget, as in Kubernetes' maxUnavailable: a share of the whole card (`78%`, `33.5%`) or an amount
(`62Gi`, `1600Mi`, `64000M`). Units are Kubernetes' own: `Gi` is 2**30 bytes, `G` is 10**9.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MIB = 1024**2
GIB = 1024**3
MAX_SHOWN = 60
"""Characters of a wrong value that a message repeats."""

_UNITS = {
    "": 1,
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_FRACTIONS = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_LARGE = {"P": 10**15, "E": 10**18, "Pi": 2**50, "Ei": 2**60}
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(k|M|G|T|Ki|Mi|Gi|Ti)?")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%")
AMOUNT_PATTERN = r"^[0-9]{1,18}(\.[0-9]{1,9})?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
PERCENT_PATTERN = r"^[0-9]{1,3}(\.[0-9]{1,9})?%$"
GPU_MEMORY_PATTERN = rf"{PERCENT_PATTERN[:-1]}$|{AMOUNT_PATTERN}"
QUANTITY_PATTERN = r"^\+?([0-9]{1,18}(\.[0-9]{0,9})?|\.[0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
"""Kubernetes' quantity of any resource, not negative: `500m`, `2`, `1e3`, `16Gi`."""
_QUANTITY = re.compile(r"\+?([0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?")

_WRONG_UNITS = {"GB": "G", "MB": "M", "KB": "k", "TB": "T", "GiB": "Gi", "MiB": "Mi", "KiB": "Ki", "TiB": "Ti",
                "g": "G", "m": "M", "K": "k", "gb": "G", "mb": "M", "gib": "Gi", "mib": "Mi", "gi": "Gi",
                "mi": "Mi", "ki": "Ki", "KI": "Ki", "ti": "Ti", "t": "T", "kb": "k", "kib": "Ki",
                "tb": "T", "tib": "Ti"}  # fmt: skip


class QuantityError(ValueError):
    """A share or an amount cannot be read; the message says how to write it."""


@dataclass(frozen=True)
class Share:
    """A part of a card's whole memory; `value` is in (0, 1]."""

    value: Fraction

    def bytes_of(self, card: int) -> int:
        """Bytes of a card of `card` bytes, rounded down: a budget must never exceed its share."""
        return self.value.numerator * card // self.value.denominator

    def __str__(self) -> str:
        return f"{_decimal(self.value * 100, 9)}%"


@dataclass(frozen=True)
class Amount:
    """An amount of memory; `value` is in bytes, above 0."""

    value: int

    def bytes_of(self, card: int) -> int:
        """The amount itself: it does not depend on the card."""
        del card
        return self.value

    def __str__(self) -> str:
        for unit in ("Gi", "Mi", "Ki"):
            if self.value and self.value % _UNITS[unit] == 0:
                return f"{self.value // _UNITS[unit]}{unit}"
        return str(self.value)


Budget = Share | Amount


def parse_amount(text: str | int) -> int:
    """Bytes of a Kubernetes memory quantity, a fraction of a byte cut off. Raises QuantityError."""
    if isinstance(text, bool):
        raise QuantityError(f"{text} is not an amount of memory such as 62Gi or 1600Mi")
    if isinstance(text, int):
        if text <= 0:
            raise QuantityError(f"{_shown(text)} must be above 0")
        return text
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise QuantityError(_unreadable(text, "an amount of memory such as 62Gi or 1600Mi"))
    number = Fraction(match[1]) * _UNITS[match[2] or ""]
    if number < 1:
        raise QuantityError(f"{_shown(text)} must be above 0")
    return int(number)


def parse_percent(text: str) -> Fraction:
    """A percentage in (0, 100] as a fraction of 1. Raises QuantityError."""
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise QuantityError(_unreadable(text, "a percentage such as 78% or 33.5%"))
    value = Fraction(match[1]) / 100
    if value <= 0:
        raise QuantityError(f"{_shown(text)} must be above 0%")
    if value > 1:
        raise QuantityError(f"{_shown(text)} is more than a whole card; at most 100% can be asked for")
    return value


def parse_budget(text: str | int) -> Budget:
    """A share (`78%`) or an amount (`62Gi`). Raises QuantityError."""
    if isinstance(text, str) and text.rstrip().endswith("%"):
        return Share(parse_percent(text))
    return Amount(parse_amount(text))


def parse_quantity(text: str | int | float) -> Fraction:
    """A quantity of any resource, 0 too, as Kubernetes reads it: `500m` CPUs, `16Gi`. Raises QuantityError."""
    if not isinstance(text, str):
        if text < 0 or text != text or text == float("inf"):
            raise QuantityError(f"{_shown(text)} is not a quantity of 0 or more")
        return Fraction(text)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(_unreadable(text, "a quantity such as 500m, 2 or 16Gi"))
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return number * Fraction(10) ** int(suffix[1:])
    return number * (_FRACTIONS.get(suffix) or _LARGE.get(suffix) or _UNITS[suffix])


def format_percent(value: Fraction, unlike: Fraction | None = None) -> str:
    """`78%`, `33.5%`, `94.0049%`: exact up to four decimals, otherwise as short as it can be without misleading.

    A share is never rounded to a whole percentage that it is not, nor to the text of `unlike`, the share it is compared
    with: an excess of a billionth prints as `100.0000001%`, not as `100% of 100%`.
    """
    scaled, rest = divmod(value.numerator * 10**6, value.denominator)
    if rest == 0 and scaled >= 0:
        whole, part = divmod(scaled, 10**4)
        return f"{whole}.{part:04d}".rstrip("0") + "%" if part else f"{whole}%"
    percent = value * 100
    for digits in range(2, 19):
        rounded = round(percent * 10**digits)
        if rounded % 10**digits and (unlike is None or rounded != unlike * 100 * 10**digits):
            break
    return f"{_decimal(percent, digits)}%"


def format_bytes(value: int, unlike: int | None = None) -> str:
    """Kubernetes units: exact `Gi`, `Mi` or `Ki` where short, otherwise one decimal of the bigger unit.

    Where that would read the same as `unlike`, the amount it is compared with, it is given in the biggest unit that
    tells them apart, rounded down.
    """
    text = _short_bytes(value)
    if unlike is None or unlike == value or text != _short_bytes(unlike):
        return text
    for unit in ("Mi", "Ki"):
        size = _UNITS[unit]
        if value % size == 0 or value // size != unlike // size:
            return f"{value // size}{unit}"
    return str(value)


def _short_bytes(value: int) -> str:
    if value % GIB == 0 and value:
        return f"{value // GIB}Gi"
    if value % MIB == 0 and 0 < value < 10 * GIB:
        return f"{value // MIB}Mi"
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if value >= _UNITS[unit] and (unit != "Ti" or value >= 10 * _UNITS[unit]):
            return f"{_decimal(Fraction(value, _UNITS[unit]), 1, keep=1)}{unit}"
    return str(value)


def _decimal(value: Fraction, digits: int, keep: int = 0) -> str:
    """Decimal text, rounded to `digits` decimals, trailing zeros off but for `keep`. No float is involved."""
    scaled = round(abs(value) * 10**digits)
    whole, part = divmod(scaled, 10**digits)
    decimals = f"{part:0{digits}d}".rstrip("0").ljust(keep, "0")
    sign = "-" if value < 0 and scaled else ""
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"


def _unreadable(text: str, wanted: str) -> str:
    match = re.fullmatch(r"\s*([0-9.]{1,20})\s*([A-Za-z]{1,5})\s*", text)
    if match and match[2] in _WRONG_UNITS:
        unit = _WRONG_UNITS[match[2]]
        binary = "" if unit.endswith("i") else f", or {match[1]}{unit.upper()}i for powers of 1024"
        return f"{_shown(text)} is not a Kubernetes quantity; write {match[1]}{unit}{binary}"
    if match and match[2] in _UNITS:
        return f"{_shown(text)} is not a Kubernetes quantity; write {match[1]}{match[2]}"
    return f"{_shown(text)} is not {wanted}"


def _shown(text: str | float) -> str:
    """As Python would show it, cut where nobody would read on."""
    try:
        shown = repr(text)
    except ValueError:
        return "a number of thousands of digits"
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 1]}…"
