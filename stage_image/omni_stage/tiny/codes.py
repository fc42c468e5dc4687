"""The code book between talker and decode: which code voices which token.

Both sides make it from the same seed. A token that did not pass the talker decodes to another one, so readable text
proves that it did.
"""

from __future__ import annotations

import torch

SEED = 20
CODES = 320


def code_book() -> torch.Tensor:
    """`code_book()[code]` is the token that the code voices; int64 [CODES]."""
    return torch.randperm(CODES, generator=torch.Generator().manual_seed(SEED))
