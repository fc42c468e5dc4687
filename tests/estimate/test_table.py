"""The page that sets the estimate beside public measurements says what the code says."""

from __future__ import annotations

from fractions import Fraction

from tests.estimate.table import PAGE, judged, measured, median_error, page


def test_the_page_is_generated() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.estimate.table"


def test_the_median_error_on_memory_is_under_5_percent() -> None:
    rows = measured()
    assert len(rows) >= 20
    assert median_error(rows) < Fraction(5, 100)
    assert median_error([row for row in rows if not row.cache]) < Fraction(5, 100)


def test_caches_are_exact_to_the_rounding_of_their_sources() -> None:
    assert all(abs(row.error) < Fraction(2, 100) for row in measured() if row.cache)


def test_nothing_that_works_is_called_too_big() -> None:
    assert [row.what for row in judged() if row.works and not row.said] == []


def test_what_does_not_fit_is_found_but_for_the_one_case_that_the_page_explains() -> None:
    assert [row.what for row in judged() if not row.works and row.said] == [
        "Tested layout higgs-h100-four-copies-too-big"
    ]
