"""The cards that shares are planned on, with the memory that they truly report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from omni_operator.api.quantities import MIB
from omni_operator.catalogue.files import data_yaml


@dataclass(frozen=True)
class Card:
    """A GPU product. `memory` is in bytes; `sold_as` is the marketing size in GB, 0 where there is none."""

    name: str
    memory: int
    product: str = ""
    architecture: str = ""
    sold_as: int = 0


@cache
def cards() -> Mapping[str, Card]:
    """All known cards by name, smallest first."""
    rows = data_yaml("cards.yaml")
    found = [
        Card(name, row["memoryMiB"] * MIB, row["product"], row["architecture"], row["soldAs"])
        for name, row in rows.items()
    ]
    return {card.name: card for card in sorted(found, key=lambda c: (c.memory, c.name))}
