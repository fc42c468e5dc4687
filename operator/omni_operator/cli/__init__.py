"""The command line, a kubectl plugin: `kubectl omni plan FILE…`, or `python -m omni_operator.cli`.

Promises: the verdict is the operator's own, since the rules are; bad input gets a message with line and column and exit
code 2, never a traceback; a start loads neither the Kubernetes client nor kopf, and pydantic only where it must.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

BAD_INPUT = 2
FAILED = 3
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code comes back."""
    import gc

    gc.disable()  # A short run makes no garbage worth collecting, and collecting costs a tenth of the start.
    from omni_operator.cli.app import run
    from omni_operator.cli.documents import BadInput
    from omni_operator.cli.paint import say

    try:
        code = run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BadInput as problem:
        say(str(problem))
        return BAD_INPUT
    except SystemExit as end:  # argparse has said what is wrong, or shown its help.
        return end.code if isinstance(end.code, int) else 0
    except BrokenPipeError:  # The reader has seen enough, as `| head` has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("OMNI_DEBUG"):
            raise
        sys.stderr.write(f"kubectl-omni failed: {type(error).__name__}: {error}. OMNI_DEBUG=1 shows where.\n")
        return FAILED
    return code
