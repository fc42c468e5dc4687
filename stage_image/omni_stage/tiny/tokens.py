"""The tokenizer of the tiny model for the stages that have no engine: without the transformers library, which is slow
to import and large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer


def prompt(messages: list[dict[str, str]]) -> str:
    """The conversation as the model's chat template writes it."""
    return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant:"


class TinyTokenizer:
    """The vocabulary of one model folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
        self._special = {self._tokenizer.token_to_id(settings[name]) for name in ("bos_token", "eos_token")}

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation."""
        ids: list[int] = self._tokenizer.encode(prompt(messages), add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, without the special ones."""
        text: str = self._tokenizer.decode([i for i in ids if i not in self._special])
        return text


def load_tokenizer(model_path: str) -> TinyTokenizer:
    """From a model folder."""
    return TinyTokenizer(Path(model_path))
