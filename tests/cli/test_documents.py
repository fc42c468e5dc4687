"""Reading YAML: places for messages, and clear errors for whatever cannot be read."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_operator.cli.documents import BadInput, decode, read

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{c}: &{c} [{','.join(['*' + p] * 10)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_every_field_has_a_place() -> None:
    document = read("a: 1\nb:\n- name: x\n  gpus: [0,\n    1]\n", "f.yaml")[0]
    assert document.data == {"a": 1, "b": [{"name": "x", "gpus": [0, 1]}]}
    assert str(document.place(("b", 0, "gpus"))) == "f.yaml:4:3"
    assert str(document.place(("b", 0, "gpus", 1))) == "f.yaml:5:5"
    assert str(document.place(("b", 0, "not", "there"))) == "f.yaml:3:3"


def test_several_documents_and_empty_ones() -> None:
    found = read("---\na: 1\n---\n---\nb: 2\n...\n", "f")
    assert [document.data for document in found] == [{"a": 1}, {"b": 2}]
    assert str(found[1].place(("b",))) == "f:5:1"


def test_json_is_yaml() -> None:
    assert read('{"a": [1, 2.5, true, null, "x"]}', "f")[0].data == {"a": [1, 2.5, True, None, "x"]}


def test_anchors_and_merges_are_followed() -> None:
    assert read("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: *a", "f")[0].data == {
        "a": {"x": 1},
        "b": {"x": 1, "y": 2},
        "c": {"x": 1},
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1, 2", "f.yaml:1:4: not valid YAML"),
        ("a: 1\n b: 2", "f.yaml:2:3: not valid YAML"),
        ("a:\n\t- b", "f.yaml:2:1: not valid YAML"),
        ("a: 1\nb: 2\na: 3", "f.yaml:3:1: 'a' is given twice"),
        ("a: .nan", "f.yaml:1:4: .nan is not a number"),
        ("a: -.inf", "f.yaml:1:4: -.inf is not a number"),
        ("a: *b", "f.yaml:1:4: the alias *b has no anchor"),
        ("a: &a [*a]", "f.yaml:1:8: the alias *a has no anchor"),
        ("a: !!python/object/apply:os.system [ls]", "is not supported; only plain data is read"),
        ("a: !mine b", "f.yaml:1:4: the tag '!mine' is not supported"),
        ("[1]: 2", "f.yaml:1:1: a key must be plain text"),
        ("a: \x01", "f.yaml:1: not valid YAML"),
        (BOMB, "values once aliases are followed"),
        ("[" * 10_000, "nest"),
        ("[" * 100 + "]" * 100, "nested more than 60 levels deep"),
        ("x" * 4_000_000, "too many for a manifest"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(text: str, says: str) -> None:
    started = time.monotonic()
    with pytest.raises(BadInput) as caught:
        read(text, "f.yaml")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300
    assert time.monotonic() - started < 5


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(BadInput, match="f:2: not UTF-8 text: byte 0xff"):
        decode(b"a\n\xff", "f")
    assert decode(b"\xef\xbb\xbfa: 1", "f") == "a: 1"


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(BadInput):
        read(text, "f")


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.text("abc: -", max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
@settings(max_examples=80, deadline=None)
def test_what_is_written_reads_back(value: object) -> None:
    import yaml

    assert [document.data for document in read(yaml.safe_dump({"a": value}), "f")] == [{"a": value}]
