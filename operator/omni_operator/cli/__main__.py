"""`python -m omni_operator.cli`."""

import sys

from omni_operator.cli import main

sys.exit(main())
