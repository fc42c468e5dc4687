"""PURE: feature gates as they are written on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping


def gates(text: str) -> dict[str, bool]:
    """`A=true,B=false` as a mapping; a type for argparse."""
    pairs = [each.partition("=") for each in text.split(",") if each]
    if wrong := [name for name, _, value in pairs if value not in ("true", "false")]:
        raise argparse.ArgumentTypeError(f"write {wrong[0]}=true or {wrong[0]}=false")
    return {name: value == "true" for name, _, value in pairs}


def written(mapping: Mapping[str, bool]) -> str:
    """The reverse."""
    return ",".join(f"{name}={str(value).lower()}" for name, value in sorted(mapping.items()))
