"""The mark that each stage of the tiny pipeline leaves, so that an answer shows which way it came. Pure."""

from __future__ import annotations

KEY = "trail"


def passed(trail: list[str], stage: str) -> list[str]:
    """The trail with one more stage; the list that came in stays as it is."""
    return [*trail, stage]


def shown(trail: list[str]) -> str:
    """How an answer's text begins."""
    return f"[{' > '.join(trail)}] "
