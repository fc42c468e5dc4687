"""Two affinities as one that holds both: what the operator needs of a node, and what the user wants of it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any


def both(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Terms about pods all hold, and so are listed together. Of a node's, one is enough: so each of ours is joined with
    each of theirs."""
    joined: dict[str, Any] = {}
    for kind in dict.fromkeys((*ours, *theirs)):
        mine, yours = ours.get(kind, {}), theirs.get(kind, {})
        joined[kind] = {
            name: _terms(mine[name], yours[name]) if name in mine and name in yours else {**mine, **yours}[name]
            for name in dict.fromkeys((*mine, *yours))
        }
    return joined


def _terms(mine: Any, yours: Any) -> Any:
    if isinstance(mine, list):
        return [*mine, *yours]
    pairs = product(mine["nodeSelectorTerms"], yours["nodeSelectorTerms"])
    return {"nodeSelectorTerms": [_node_term(first, second) for first, second in pairs]}


def _node_term(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [*first.get(name, ()), *second.get(name, ())] for name in dict.fromkeys((*first, *second))}
