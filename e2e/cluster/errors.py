"""The one error of this package: what is wrong, and what to do about it. Command lines print it without a traceback."""

from __future__ import annotations

from collections.abc import Sequence


class ClusterError(Exception):
    """Something that a person can fix.

    `problem` says what is wrong, `remedy` what to do; `detail` holds lines worth seeing, such as the end of a log.
    """

    def __init__(self, problem: str, remedy: str, detail: Sequence[str] = ()) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.detail = tuple(detail)

    def __str__(self) -> str:
        lines = [self.problem, *(f"    {line}" for line in self.detail), f"  remedy: {self.remedy}"]
        return "\n".join(lines)
