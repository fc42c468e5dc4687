"""The command line, a kubectl plugin: `kubectl omni plan FILE…`, or `python -m omni_operator.cli`.

Promises: the verdict is the operator's own, since the rules are; bad input gets a message with line and column and exit
code 2, never a traceback; a start loads neither the Kubernetes client nor kopf nor pydantic where it can do without.
"""

from __future__ import annotations

import os
import sys

BAD_INPUT = 2
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and ends the process with its code when called as a script."""
    from omni_operator.cli.app import app
    from omni_operator.cli.documents import BadInput

    try:
        code = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
    except BadInput as problem:
        sys.stderr.write(f"{problem}\n")
        return BAD_INPUT
    except BrokenPipeError:  # The reader has seen enough, as `| head` has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return _failed(error)
    return code if isinstance(code, int) else 0


def _failed(error: Exception) -> int:
    """Usage errors in their own words; anything else is a mistake of ours, said in one line."""
    show = getattr(error, "show", None)
    if callable(show):
        show()
        return BAD_INPUT
    if os.environ.get("OMNI_DEBUG"):
        raise error
    sys.stderr.write(f"kubectl-omni failed: {type(error).__name__}: {error}. OMNI_DEBUG=1 shows where.\n")
    return BAD_INPUT
