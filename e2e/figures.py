"""What a benchmark says: figures, each with its limit and what was measured beside it."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    what: str
    value: float
    unit: str
    limit: float
    peer: str = ""


def show(figures: list[Figure]) -> None:
    table = Table(box=None)
    for column in ("figure", "measured", "limit", "beside"):
        table.add_column(column, justify="right" if column in ("measured", "limit") else "left")
    for figure in figures:
        mark = "" if figure.value <= figure.limit else " [red]over[/red]"
        row = (f"{figure.value:.3g} {figure.unit}{mark}", f"{figure.limit:g} {figure.unit}")
        table.add_row(figure.what, *row, figure.peer)
    Console().print(table)
