"""Write the tiny pipeline's model and tokenizer, the same bytes every time.

The model is a Llama that SGLang loads and runs like any other. Its weights are random but for two that are written by
hand: each token's embedding is a direction of its own, and the output layer answers each token with its successor in
`SENTENCE`. So it says a readable, known text, whatever the prompt, while attention and the layers between do all their
work, at a scale that never changes the verdict.

Usage: python -m omni_stage.tiny.make_model FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SENTENCE = (
    "This tiny model runs on plain processors, so stages, shares and their order can be tested where no GPU exists: "
    "thinker makes each word, talker voices it, decode spells everything."
)
"""What the model answers, then it stops. No word comes twice, for a token has one successor."""
BEGIN, END = "<s>", "</s>"
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
HIDDEN_SIZE = 512
VOCABULARY_SIZE = 320
CONTEXT_LENGTH = 4096
NOISE = 0.005
"""Standard deviation of the random weights."""
EMBEDDING_NORM = 4.0
"""Length of a token's own direction; what the layers add to it is shorter by an order of magnitude."""


def make_tokenizer() -> tuple[PreTrainedTokenizerFast, list[int]]:
    """A byte-level tokenizer that also knows each word of SENTENCE, and the token ids of SENTENCE.

    It has no merges, so a prompt is spelled in bytes and any prompt fits; only the model says whole words.
    """
    vocabulary = {BEGIN: 0, END: 1}
    for byte in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[byte] = len(vocabulary)
    words = [("Ġ" if position else "") + word for position, word in enumerate(SENTENCE.split(" "))]
    if len(set(words) | set(vocabulary)) != len(words) + len(vocabulary):
        raise ValueError("a word of SENTENCE comes twice, or is one byte long")
    sentence = [vocabulary.setdefault(word, len(vocabulary)) for word in words]
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast, sentence


def successors(sentence: list[int]) -> list[int]:
    """Which token each token is answered with: along the sentence, and from anything else to its first word."""
    following = [sentence[0]] * VOCABULARY_SIZE
    for token, successor in zip(sentence, [*sentence[1:], 1], strict=True):
        following[token] = successor
    return following


def make_model(sentence: list[int]) -> LlamaForCausalLM:
    """The Llama described above."""
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=HIDDEN_SIZE,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        initializer_range=NOISE,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * NOISE)
            elif "norm" not in name:
                weight.zero_()
        directions, _ = torch.linalg.qr(torch.randn(HIDDEN_SIZE, HIDDEN_SIZE, generator=generator))
        directions = directions[:VOCABULARY_SIZE]
        output = torch.zeros(VOCABULARY_SIZE, HIDDEN_SIZE)
        for token, successor in enumerate(successors(sentence)):
            output[successor] += directions[token]
        model.get_input_embeddings().weight.copy_(directions * EMBEDDING_NORM)
        model.get_output_embeddings().weight.copy_(output)
    return model.to(torch.bfloat16)


def main() -> None:
    """Write both into the folder that the command names."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, sentence = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(sentence).save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # weights are saved for their owner alone; the container runs as another user
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
