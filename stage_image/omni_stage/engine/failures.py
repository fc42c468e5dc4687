"""How an engine process ends when something goes wrong: the supervisor hears why, and the status says it again."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

from omni_stage import report
from omni_stage.contract import ConfigError, ExitCode
from omni_stage.report import FailureKind, Report

CRASH_STATUS = 1


def tell(text: str) -> None:
    """Report a failure that sglang-omni hands over as a traceback's text."""
    kind = FailureKind.CRASH
    if "ConfigError:" in text:
        kind = FailureKind.CONFIG
    elif "PeerLost:" in text:
        kind = FailureKind.PEER_LOST
    report.send(Report(failure=kind, detail=text))


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Tell the supervisor of whatever goes wrong inside, then end the process."""
    try:
        yield
    except ConfigError as error:
        report.send(Report(failure=FailureKind.CONFIG, detail=str(error)))
        print(f"omni_stage: {error}", file=sys.stderr, flush=True)
        leave(ExitCode.BAD_CONFIG)
    except SystemExit as error:
        leave(error.code if isinstance(error.code, int) else CRASH_STATUS)
    except BaseException:
        text = traceback.format_exc()
        tell(text)
        print(text, file=sys.stderr, flush=True)
        leave(CRASH_STATUS)


def leave(status: int) -> None:
    """End without tearing the interpreter down: with a model loaded that takes seconds, and threads may hang it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
