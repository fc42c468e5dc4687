"""SGLang's own Llama, by the name under which SGLang looks for models of a package."""

from __future__ import annotations

from sglang.srt.models.llama import LlamaForCausalLM as EntryClass

__all__ = ["EntryClass"]
