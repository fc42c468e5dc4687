"""Which accepted specs are kept, and how they are numbered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omni_operator.planning.history import HistoryStep, Revision, next_history, restored, spec_hash


def revision(number: int, digest: str) -> Revision:
    return Revision(f"m-{digest}", f"uid-{digest}", number, digest, {})


A, B, C = revision(1, "a"), revision(2, "b"), revision(3, "c")


def test_the_first_is_number_one() -> None:
    assert next_history([], "a", 10) == HistoryStep(1, write=True)


def test_a_new_spec_gets_the_next_number_and_the_oldest_go() -> None:
    assert next_history([A, B, C], "d", 2) == HistoryStep(4, write=True, remove=(A,))
    assert next_history([A, B, C], "d", 0) == HistoryStep(4, write=True, remove=(C, B, A))


def test_the_newest_again_writes_nothing() -> None:
    assert next_history([A, B, C], "c", 10) == HistoryStep(3)


def test_one_that_comes_back_gets_a_new_number() -> None:
    assert next_history([A, B, C], "a", 10) == HistoryStep(4, write=True)
    assert next_history([A, B, C], "a", 1) == HistoryStep(4, write=True, remove=(B,)), "never the current one"


def test_replicas_and_the_limit_are_no_part_of_a_spec_and_stay_when_one_goes_back() -> None:
    spec = {"model": {"id": "m"}, "replicas": 3}
    assert spec_hash(spec) == spec_hash({"model": {"id": "m"}, "revisionHistoryLimit": 2})
    assert spec_hash(spec) != spec_hash({"model": {"id": "n"}, "replicas": 3})
    live = {"model": {"id": "n"}, "replicas": 5, "image": "i"}
    assert restored({"model": {"id": "m"}}, live) == {"model": {"id": "m"}, "replicas": 5}


@given(st.lists(st.sampled_from("abcdef"), max_size=30), st.integers(0, 4))
def test_the_accepted_one_is_always_the_newest_and_no_more_are_kept_than_asked(specs: list[str], limit: int) -> None:
    kept: dict[str, Revision] = {}
    for digest in specs:
        step = next_history(list(kept.values()), digest, limit)
        for old in step.remove:
            del kept[old.hash]
        assert step.write or digest in kept
        kept[digest] = revision(step.number, digest)
        numbers = [found.number for found in kept.values()]
        assert len(set(numbers)) == len(numbers)
        assert max(numbers) == kept[digest].number
        assert len(kept) <= limit + 1
        assert next_history(list(kept.values()), digest, limit) == HistoryStep(step.number), "at rest"
