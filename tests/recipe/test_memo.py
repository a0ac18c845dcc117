"""What is encoded once is found again: by its own scope alone, within the bound, whichever thread asks."""

import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.memo import EncodeMemo, Segment

SCOPES = ("", "a", "a/", "a/b", "b")
SEGMENTS: tuple[Segment, ...] = ("", "x", "xy", ("x",), ("x", "y"), ("", "x", "y"), "中" * 40)
ASKED = st.lists(
    st.tuples(st.sampled_from(SCOPES), st.lists(st.sampled_from(SEGMENTS), max_size=4)), max_size=30
)


def numbered(scope: str, segment: Segment) -> list[int]:
    """Ids that no other scope and segment has."""
    return [SCOPES.index(scope), SEGMENTS.index(segment), *range(1000, 1000 + len(segment))]


@given(asked=ASKED, bytes_max=st.sampled_from([0, 300, 1200, 2**20]))
def test_ids_are_those_of_the_segment_and_never_of_another_scope(
    asked: list[tuple[str, list[Segment]]], bytes_max: int
) -> None:
    memo = EncodeMemo(bytes_max)
    for scope, segments in asked:

        def encode(place: int, scope: str = scope, segments: Sequence[Segment] = segments) -> list[int]:
            return numbered(scope, segments[place])

        assert memo.ids(scope, segments, encode) == [tuple(numbered(scope, each)) for each in segments]
        assert memo.counts.bytes_held <= bytes_max


@given(asked=ASKED)
def test_each_segment_is_encoded_once_a_scope(asked: list[tuple[str, list[Segment]]]) -> None:
    memo = EncodeMemo()
    made: set[tuple[str, Segment]] = set()
    for scope, segments in asked:
        encoded: list[int] = []

        def encode(place: int, encoded: list[int] = encoded) -> list[int]:
            encoded.append(place)
            return [place]

        memo.ids(scope, segments, encode)
        assert encoded == [place for place, each in enumerate(segments) if (scope, each) not in made]
        made.update((scope, segment) for segment in segments)


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    memo = EncodeMemo(3 * 450)

    def found(name: str) -> bool:
        before = memo.counts.found
        memo.ids("s", [name], lambda _: [1])
        return memo.counts.found > before

    assert [found(name) for name in "abc"] == [False, False, False]
    assert found("a")
    assert not found("d")
    assert [found(name) for name in "acd"] == [True, True, True]
    assert not found("b")


def test_what_is_larger_than_the_bound_drives_nothing_out() -> None:
    memo = EncodeMemo(1000)
    memo.ids("s", ["a"], lambda _: [1])
    held = memo.counts.bytes_held
    assert memo.ids("s", ["x" * 2000], lambda _: [1, 2]) == [(1, 2)]
    assert memo.counts.bytes_held == held > 0


def test_what_an_encoder_made_before_it_failed_is_kept() -> None:
    memo = EncodeMemo()

    def encode(place: int) -> list[int]:
        if place == 1:
            raise ValueError
        return [7]

    with pytest.raises(ValueError):  # noqa: PT011 - it is our own.
        memo.ids("s", ["a", "b"], encode)
    assert memo.ids("s", ["a"], lambda _: []) == [(7,)]


@pytest.mark.parametrize("letter", ["a", "中"])
def test_bytes_are_counted_as_the_interpreter_allots_them(letter: str) -> None:
    memo, entries, length = EncodeMemo(2**40), 4000, 300
    memo.ids("", ["warm"], lambda _: range(length // 4))
    tracemalloc.start()
    try:
        for number in range(entries):
            scope = f"tenant/{number}"
            memo.ids(scope, [(letter, f"{number:08}" + letter * length)], lambda _: range(length // 4))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held <= memo.counts.bytes_held <= 1.25 * held


def test_what_two_encode_at_the_same_time_is_counted_once() -> None:
    memo, alone = EncodeMemo(), EncodeMemo()

    def encode(_: int) -> list[int]:
        memo.ids("s", ["a"], lambda _: [1])  # another thread is faster
        return [1]

    assert memo.ids("s", ["a"], encode) == [(1,)]
    alone.ids("s", ["a"], lambda _: [1])
    assert memo.counts.bytes_held == alone.counts.bytes_held


def test_threads_that_encode_the_same_keep_it_once() -> None:
    shared, alone = EncodeMemo(), EncodeMemo()
    segments = [f"segment {number}" for number in range(500)]

    def ask(turn: int) -> bool:
        order = segments[turn:] + segments[:turn]
        made = shared.ids(str(turn % 2), order, lambda place: list(order[place].encode()))
        return made == [tuple(each.encode()) for each in order]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(40)))
    for scope in "01":
        alone.ids(scope, segments, lambda place: list(segments[place].encode()))
    assert shared.counts.bytes_held == alone.counts.bytes_held
