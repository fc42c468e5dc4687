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
    """All cards whose memory is known, by name, smallest first."""
    found = [
        Card(name, row["memoryMiB"] * MIB, row["product"], row["architecture"], row["soldAs"])
        for name, row in data_yaml("cards.yaml").items()
        if row["memoryMiB"] is not None
    ]
    return {card.name: card for card in sorted(found, key=lambda c: (c.memory, c.name))}


@cache
def cards_without_memory() -> Mapping[str, str]:
    """Products by name of cards that report no memory: the user must say how much there is (never 0, never endless)."""
    return {name: row["product"] for name, row in data_yaml("cards.yaml").items() if row["memoryMiB"] is None}
