"""`--set path=value`."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.cli.documents import BadInput
from omni_operator.cli.edits import edited

SPEC: dict[str, Any] = {"gpus": {"card": "h100-80gb"}, "stages": [{"name": "thinker", "gpuMemory": "78%"}]}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ("gpus.card=h200", {"gpus": {"card": "h200"}, "stages": SPEC["stages"]}),
        ("spec.gpus.card=h200", {"gpus": {"card": "h200"}, "stages": SPEC["stages"]}),
        ("gpus.card=", {"gpus": {}, "stages": SPEC["stages"]}),
        ("replicas=2", {**SPEC, "replicas": 2}),
        ("gpus.sharing.strategy=None", {**SPEC, "gpus": {"card": "h100-80gb", "sharing": {"strategy": "None"}}}),
        ("stages[0].gpuMemory=80%", {**SPEC, "stages": [{"name": "thinker", "gpuMemory": "80%"}]}),
        ("stages[thinker].gpuMemory=80%", {**SPEC, "stages": [{"name": "thinker", "gpuMemory": "80%"}]}),
        ("stages[name=thinker].gpus=[0,1]", {**SPEC, "stages": [{**SPEC["stages"][0], "gpus": [0, 1]}]}),
        ("stages[talker].gpuMemory=5%", {**SPEC, "stages": [*SPEC["stages"], {"name": "talker", "gpuMemory": "5%"}]}),
        (
            "stages[thinker].engineArgs.mode=a=b",
            {**SPEC, "stages": [{**SPEC["stages"][0], "engineArgs": {"mode": "a=b"}}]},
        ),
    ],
)
def test_an_edit_changes_one_field(edit: str, expected: dict[str, Any]) -> None:
    before = repr(SPEC)
    assert edited(SPEC, [edit]) == expected
    assert repr(SPEC) == before


def test_edits_are_made_in_order() -> None:
    assert edited({}, ["replicas=1", "replicas=2"]) == {"replicas": 2}


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ("gpus.card", "is not of the form path=value"),
        ("=x", "is not of the form path=value"),
        ("a..b=1", "'' is no part of a path"),
        ("a[b=1", "is not of the form path=value"),
        ("stages[9].gpus=[0]", "[9] is not there; the list has 1 items"),
        ("stages[0]=x", "sets a whole item of a list"),
        ("gpus.card.name=x", "what contains it is not a mapping"),
        ("gpus[0].card=x", "is an item of a list, but there is no list"),
        ("stages.gpus=[0]", "what contains it is not a mapping"),
    ],
)
def test_an_edit_that_cannot_be_made(edit: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        edited(SPEC, [edit])
    assert says in str(caught.value)
    assert "--set" in str(caught.value)
