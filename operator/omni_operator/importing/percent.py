"""Shares as percentages, exact: 0.123 is 12.3%, and no rounding ever makes a share bigger."""

from __future__ import annotations

from fractions import Fraction

_DIGITS = 9
"""Decimals that an OmniModel's percentage may have."""


def percent_text(share: Fraction) -> tuple[str, bool]:
    """A share as a percentage, and whether it is exact. Rounded down where it has more decimals than allowed."""
    scaled = share * 100 * 10**_DIGITS
    whole, rest = divmod(int(scaled), 10**_DIGITS)
    decimals = f"{rest:0{_DIGITS}d}".rstrip("0")
    return (f"{whole}.{decimals}%" if decimals else f"{whole}%"), scaled.denominator == 1
