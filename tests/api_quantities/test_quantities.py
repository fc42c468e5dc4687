"""Shares and amounts: exact in, exact out, and text that never misleads."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_operator.api.quantities import (
    GIB,
    GPU_MEMORY_PATTERN,
    MIB,
    Amount,
    QuantityError,
    Share,
    format_bytes,
    format_percent,
    parse_amount,
    parse_budget,
    parse_percent,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("62Gi", 62 * GIB),
        ("1600Mi", 1600 * MIB),
        ("64000M", 64_000_000_000),
        ("64G", 64 * 10**9),
        ("1.5Gi", 3 * GIB // 2),
        ("1", 1),
        ("81559Mi", 85520809984),
        (4096, 4096),
    ],
)
def test_amounts_are_bytes(text: str | int, expected: int) -> None:
    assert parse_amount(text) == expected
    assert parse_budget(text) == Amount(expected)


@pytest.mark.parametrize(
    ("text", "expected"), [("78%", "78/100"), ("33.5%", "335/1000"), ("0.000000001%", "1e-11"), ("100%", "1")]
)
def test_percentages_are_fractions(text: str, expected: str) -> None:
    assert parse_percent(text) == Fraction(expected)
    assert parse_budget(text) == Share(Fraction(expected))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4GB", "write 4G, or 4Gi"),
        ("9GiB", "write 9Gi"),
        ("4 Gi", "write 4Gi"),
        ("10kb", "write 10k, or 10Ki"),
        ("1e9 %", "is not a percentage such as 78%"),
        ("NaN%", "is not a percentage"),
        ("inf", "is not an amount of memory"),
        ("-1Gi", "is not an amount of memory"),
        ("", "is not an amount of memory"),
        ("0", "must be above 0"),
        ("0.0000001", "must be above 0"),
        ("0%", "must be above 0%"),
        ("100.000000001%", "more than a whole card"),
        ("101%", "more than a whole card"),
        ("٣%", "is not a percentage"),
        ("9" * 10_000, "…"),
        ("1Gi\n", "is not"),
        (0, "must be above 0"),
        (-5, "must be above 0"),
        (True, "is not an amount"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_how_to_write_it(text: str | int, says: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_budget(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", "0%"), ("1", "100%"), ("78/100", "78%"), ("335/1000", "33.5%"), ("1/3", "33.33%"), ("104/100", "104%"),
        ("0.059999", "5.9999%"), ("1.000001", "100.0001%"), ("1.00000001", "100.000001%"), ("1/1000000", "0.0001%"),
        ("1600/81559", "1.96%"), ("29999999/30000000", "99.999997%"),
    ],
)  # fmt: skip
def test_a_percentage_is_never_rounded_to_a_whole_that_it_is_not(value: str, text: str) -> None:
    assert format_percent(Fraction(value)) == text


def test_two_shares_that_differ_never_read_the_same() -> None:
    limit = Fraction(3333, 10_000)
    assert format_percent(Fraction(1, 3), unlike=limit) == "33.333%"
    assert format_percent(limit) == "33.33%"


@settings(deadline=None)
@given(st.fractions(0, 3), st.sampled_from([Fraction(1), Fraction(94, 100), Fraction(1, 3)]))
def test_no_excess_is_hidden(value: Fraction, limit: Fraction) -> None:
    if value != limit:
        assert format_percent(value, unlike=limit) != format_percent(limit)
    assert abs(Fraction(format_percent(value)[:-1]) / 100 - value) <= Fraction(1, 10_000)


@pytest.mark.parametrize(
    ("value", "text"),
    [(62 * GIB, "62Gi"), (1600 * MIB, "1600Mi"), (81559 * MIB, "79.6Gi"), (62 * GIB + 1, "62.0Gi"), (85520, "83.5Ki"),
     (1000, "1000"), (0, "0"), (20 * 1024 * GIB, "20480Gi")],
)  # fmt: skip
def test_amounts_read_in_kubernetes_units(value: int, text: str) -> None:
    assert format_bytes(value) == text


@settings(deadline=None)
@given(st.integers(1, 2**50), st.integers(1, 2**50))
def test_two_amounts_that_differ_never_read_the_same(one: int, other: int) -> None:
    assert one == other or format_bytes(one, unlike=other) != format_bytes(other)


@settings(deadline=None)
@given(st.integers(1, 2**55))
def test_an_amount_reads_back_as_itself(value: int) -> None:
    assert parse_budget(str(Amount(value))) == Amount(value)


@settings(deadline=None)
@given(st.integers(1, 10**11))
def test_a_share_reads_back_as_itself(billionths: int) -> None:
    share = Share(Fraction(billionths, 10**11))
    assert parse_budget(str(share)) == share
    assert re.fullmatch(GPU_MEMORY_PATTERN, str(share))


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(1, 2**50))
def test_a_share_in_bytes_never_exceeds_the_share(billionths: int, card: int) -> None:
    share = Share(Fraction(billionths, 10**9))
    assert share.bytes_of(card) <= share.value * card < share.bytes_of(card) + 1


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_budget_or_an_error(text: str) -> None:
    try:
        budget = parse_budget(text)
    except QuantityError:
        return
    assert budget.value > 0
    assert re.fullmatch(GPU_MEMORY_PATTERN, text)


def test_a_number_of_thousands_of_digits_is_an_error_too() -> None:
    with pytest.raises(QuantityError, match="thousands of digits must be above 0"):
        parse_budget(-(10**5000))
