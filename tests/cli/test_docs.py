"""What docs/cli.md shows is what the commands print. UPDATE_DOCS=1 writes the page's examples anew; read the diff."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from omni_operator.cli import main
from tests.conftest import ROOT

PAGE = ROOT / "docs/cli.md"
EXAMPLE = re.compile(r"```console\n\$ kubectl omni ([^\n]+)\n(.*?)```", re.DOTALL)
PARTS = re.compile(r"^… *$", re.MULTILINE)
"""A line of its own that stands for lines left out."""


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    words, _, code = command.partition("; echo $?")
    del code
    status = main(shlex.split(words))
    shown = capsys.readouterr()
    text = (shown.out + shown.err).rstrip("\n")
    return f"{text}\n{status}" if "; echo $?" in command else text


@pytest.mark.parametrize("command", [found[1] for found in EXAMPLE.finditer(PAGE.read_text())])
def test_the_page_shows_what_is_printed(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    text = PAGE.read_text()
    example = next(found for found in EXAMPLE.finditer(text) if found[1] == command)
    now = printed(command, capsys)
    if os.environ.get("UPDATE_DOCS"):
        Path(PAGE).write_text(text.replace(example[0], f"```console\n$ kubectl omni {command}\n{now}\n```"))
        return
    rest = now
    for part in PARTS.split(example[2]):
        before, found, rest = rest.partition(part.strip("\n"))
        assert found or not part.strip(), f"{part} is not in\n{now}"
        del before
