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

_UNITS = {
    "": 1,
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(k|M|G|T|Ki|Mi|Gi|Ti)?")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%")
AMOUNT_PATTERN = r"^[0-9]{1,18}(\.[0-9]{1,9})?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
PERCENT_PATTERN = r"^[0-9]{1,3}(\.[0-9]{1,9})?%$"
GPU_MEMORY_PATTERN = rf"{PERCENT_PATTERN[:-1]}$|{AMOUNT_PATTERN}"

_WRONG_UNITS = {"GB": "G", "MB": "M", "KB": "k", "TB": "T", "GiB": "Gi", "MiB": "Mi", "KiB": "Ki", "TiB": "Ti",
                "g": "G", "m": "M", "K": "k", "gb": "G", "mb": "M", "gib": "Gi", "mib": "Mi", "gi": "Gi",
                "mi": "Mi"}  # fmt: skip


class QuantityError(ValueError):
    """A share or an amount cannot be read; the message says how to write it."""


@dataclass(frozen=True)
class Share:
    """A part of a card's whole memory; `value` is in (0, 1]."""

    value: Fraction

    def bytes_of(self, card: int) -> int:
        """Bytes of a card of `card` bytes, rounded down: a budget must never exceed its share."""
        return int(self.value * card)

    def __str__(self) -> str:
        return format_percent(self.value)


@dataclass(frozen=True)
class Amount:
    """An amount of memory; `value` is in bytes, above 0."""

    value: int

    def bytes_of(self, card: int) -> int:
        """The amount itself: it does not depend on the card."""
        del card
        return self.value

    def __str__(self) -> str:
        return format_bytes(self.value)


Budget = Share | Amount


def parse_amount(text: str | int) -> int:
    """Bytes of a Kubernetes memory quantity. Raises QuantityError."""
    if isinstance(text, int):
        if text <= 0:
            raise QuantityError(f"{text} must be above 0")
        return text
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise QuantityError(_unreadable(text, "an amount of memory such as 62Gi or 1600Mi"))
    number = Fraction(match[1]) * _UNITS[match[2] or ""]
    if number < 1:
        raise QuantityError(f"{text!r} must be above 0")
    return int(number)


def parse_percent(text: str) -> Fraction:
    """A percentage in (0, 100] as a fraction of 1. Raises QuantityError."""
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise QuantityError(_unreadable(text, "a percentage such as 78% or 33.5%"))
    value = Fraction(match[1]) / 100
    if value <= 0:
        raise QuantityError(f"{text!r} must be above 0%")
    if value > 1:
        raise QuantityError(f"{text!r} is more than a whole card; at most 100% can be asked for")
    return value


def parse_budget(text: str | int) -> Budget:
    """A share (`78%`) or an amount (`62Gi`). Raises QuantityError."""
    if isinstance(text, str) and text.rstrip().endswith("%"):
        return Share(parse_percent(text))
    return Amount(parse_amount(text))


def format_percent(value: Fraction) -> str:
    """`78%`, `33.5%`; at most two decimals, and never rounded to a whole that it is not."""
    hundredths = value * 10000
    if hundredths.denominator == 1:
        return f"{int(hundredths) / 100:.10g}%"
    return f"{float(value * 100):.4g}%"


def format_bytes(value: int) -> str:
    """Kubernetes units: exact `Gi` or `Mi` where it is exact, otherwise one or two decimals of the bigger unit."""
    if value % GIB == 0 and value:
        return f"{value // GIB}Gi"
    if value % MIB == 0 and value < 10 * GIB:
        return f"{value // MIB}Mi"
    if value >= GIB:
        return f"{value / GIB:.1f}Gi"
    return f"{value / MIB:.1f}Mi"


def _unreadable(text: str, wanted: str) -> str:
    match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]+)\s*", text)
    if match and match[2] in _WRONG_UNITS:
        return f"{text!r} is not a Kubernetes quantity; write {match[1]}{_WRONG_UNITS[match[2]]}"
    return f"{text!r} is not {wanted}"
