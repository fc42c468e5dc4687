"""Counting decoders from their shape."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_operator.catalogue import KvShape, model_sizes
from omni_operator.catalogue.shapes import DecoderShape, ShapeError, decoder_shape, dtype_name, kv_shape

QWEN3_4B = DecoderShape(36, 2560, 32, 8, 128, 9728, 151936, True)
QWEN3_8B = DecoderShape(36, 4096, 32, 8, 128, 12288, 151936, False)
THINKER = DecoderShape(48, 2048, 32, 4, 128, 768, 152064, False, 128, 768)


@pytest.mark.parametrize(
    ("shape", "billions"), [(QWEN3_4B, "4.02"), (QWEN3_8B, "8.19"), (THINKER, "30.53")], ids=["4B", "8B", "30B-A3B"]
)
def test_parameters_are_those_of_the_model_cards(shape: DecoderShape, billions: str) -> None:
    assert abs(Fraction(shape.parameters, 10**9) - Fraction(billions)) < Fraction(1, 100)


def test_sizes_said_to_be_counted_are() -> None:
    sizes = model_sizes()
    assert sizes["bosonai/higgs-tts-3-4b"].components["tts_engine"].weights == 2 * QWEN3_4B.parameters
    assert sizes["fishaudio/s2-pro"].components["slow_ar"].weights == 2 * QWEN3_4B.parameters
    voxtral = DecoderShape(26, 3072, 32, 8, 128, 9216, 131072, True)
    assert sizes["mistralai/voxtral-4b-tts-2603"].components["decoder"].weights == 2 * voxtral.parameters
    thinker = sizes["qwen/qwen3-omni-30b-a3b-instruct"].components["thinker"]
    assert abs(Fraction(thinker.weights, 2 * THINKER.parameters) - 1) < Fraction(2, 1000)
    assert thinker.kv == THINKER.kv


def test_a_token_of_the_thinker_takes_96_kib() -> None:
    assert THINKER.kv.token_bytes() == 96 * 1024
    assert THINKER.kv.token_bytes("fp8") == 48 * 1024


def test_more_ranks_than_kv_heads_repeat_heads() -> None:
    assert [KvShape(1, 4, 128).token_bytes(ranks=ranks) for ranks in (1, 2, 4, 8)] == [2048, 1024, 512, 512]


def test_shapes_are_read_in_the_words_of_several_families() -> None:
    hugging = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10}
    mistral = {"n_layers": 26, "dim": 3072, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "vocab_size": 131072}
    assert kv_shape(hugging) == KvShape(2, 4, 16)
    assert kv_shape(mistral) == KvShape(26, 8, 128)
    assert decoder_shape(mistral | {"hidden_dim": 9216, "tied_embeddings": True}).parameters == 3429012992


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_hidden_layers": 0, "num_attention_heads": 1, "hidden_size": 1},
        {"num_hidden_layers": True, "num_attention_heads": 1, "hidden_size": 1},
        {"num_hidden_layers": "2", "num_attention_heads": 1, "hidden_size": 1},
        {"num_hidden_layers": 2.5, "num_attention_heads": 1, "hidden_size": 1},
        {"num_hidden_layers": 10**9, "num_attention_heads": 1, "hidden_size": 1},
        {"num_hidden_layers": 1, "num_attention_heads": 8, "hidden_size": 4},
    ],
)
def test_shapes_that_cannot_be_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(ShapeError):
        kv_shape(config)


def test_dtypes_have_one_name() -> None:
    assert [dtype_name(name) for name in ("torch.bfloat16", "float8_e4m3fn", "fp8_e5m2", "half")] == [
        "bf16", "fp8", "fp8", "fp16",
    ]  # fmt: skip
    with pytest.raises(ShapeError, match="not known"):
        dtype_name("q4_k_m")


@given(st.integers(1, 100), st.integers(1, 64), st.sampled_from([64, 80, 128]), st.sampled_from([1, 2, 4, 8]))
def test_splitting_never_makes_a_ranks_cache_bigger(layers: int, heads: int, size: int, ranks: int) -> None:
    shape = KvShape(layers, heads, size)
    assert shape.token_bytes(ranks=1) >= shape.token_bytes(ranks=ranks) >= shape.token_bytes(ranks=1) / ranks
