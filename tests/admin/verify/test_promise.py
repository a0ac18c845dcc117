"""Broken promises: beside a model that looks at every pair, and case by case."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.verify.promise import CLOCKS_APART_S, Broken, Exchange, broken_promises
from tests import attested

AT = datetime(2026, 11, 2, 9, tzinfo=UTC)
MADE_S = int(AT.timestamp())
DAY_S = 86_400
FAR = CLOCKS_APART_S + 1


@dataclass(frozen=True)
class Kept:
    """A request as the tests write it; seconds count from `AT`."""

    number: int
    tokens: tuple[int, ...]
    admitted_s: int = 0
    attested_s: int = 0
    until_s: int | None = None
    hit: int = 0
    owed: int = 0
    block: int = 4
    user: str = ""
    model: str = "m"
    computed: bool = True
    judged: bool = True

    @property
    def exchange(self) -> Exchange:
        prefill = attested.prefill(
            UUID(int=self.number),
            prompt_tokens=len(self.tokens),
            hit_tokens=self.hit,
            owed_tokens=self.owed,
            block_tokens=self.block,
            promised_until=None if self.until_s is None else MADE_S + self.until_s,
            attested_at_ns=(MADE_S + self.attested_s) * 10**9,
            computed=self.computed,
        )
        admitted_at = AT + timedelta(seconds=self.admitted_s)
        scope = "ten_a", self.user, self.model
        accepted = prefill if self.judged else None
        return Exchange(UUID(int=self.number), scope, admitted_at, self.tokens, (prefill,), accepted)


def found(*kept: Kept) -> list[Broken]:
    return broken_promises(each.exchange for each in kept)


TOKENS = tuple(range(14))
PROMISE = Kept(1, TOKENS, until_s=DAY_S)
ASKED = Kept(2, TOKENS, admitted_s=60, attested_s=61)


def test_a_miss_that_a_promise_covers_is_found_and_by_which_promise() -> None:
    (broken,) = found(PROMISE, ASKED)
    assert broken == Broken(UUID(int=2), UUID(int=1), MADE_S + DAY_S, 12, 0, 0)
    assert broken.missed_tokens == 12
    (broken,) = found(PROMISE, replace(ASKED, hit=4, owed=4))
    assert broken.missed_tokens == 4


@pytest.mark.parametrize(
    ("changes", "promised"),
    [
        ({"hit": 12}, None),
        ({"hit": 8, "owed": 4}, None),  # owed is kept
        ({"tokens": (99, *TOKENS[1:])}, None),
        ({"tokens": (*TOKENS[:5], 99, *TOKENS[6:])}, 4),
        ({"tokens": TOKENS[:12]}, 8),  # one token is always computed
        ({"tokens": TOKENS[:13]}, 12),
        ({"tokens": (*TOKENS, *range(50))}, 12),  # the 13th and 14th are no whole block
        ({"tokens": TOKENS[:4]}, None),
        ({"user": "someone"}, None),
        ({"model": "n"}, None),
        ({"judged": False}, None),
        ({"admitted_s": DAY_S + 1}, None),
        ({"admitted_s": DAY_S - FAR}, 12),
        ({"admitted_s": -60}, None),  # before the promise was made
        ({"admitted_s": 0}, None),
        ({"admitted_s": FAR}, 12),
        ({"block": 8}, 8),  # counted in its own blocks
        ({"block": 6}, 12),
        ({"block": 32}, None),
    ],
)
def test_what_is_and_what_is_no_broken_promise(changes: dict[str, Any], promised: int | None) -> None:
    broken = found(PROMISE, replace(ASKED, **changes))
    assert [each.promised_tokens for each in broken] == ([] if promised is None else [promised])


@pytest.mark.parametrize("changes", [{"until_s": None}, {"computed": False}, {"until_s": 61}])
def test_who_has_promised_nothing_has_broken_nothing(changes: dict[str, Any]) -> None:
    assert found(replace(PROMISE, **changes), ASKED) == []


def test_a_promise_of_an_attempt_that_was_not_accepted_is_one_too() -> None:
    assert found(replace(PROMISE, judged=False), ASKED)


def test_the_promise_that_ends_last_counts_and_a_longer_one_does_not_hide_it() -> None:
    short = Kept(3, TOKENS[:8], attested_s=1, until_s=2 * DAY_S)
    late = replace(ASKED, admitted_s=DAY_S + 60)
    (broken,) = found(PROMISE, short, late)
    assert (broken.by, broken.promised_tokens) == (UUID(int=3), 8)


KEPT = st.builds(
    Kept,
    number=st.just(0),
    tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple),
    admitted_s=st.integers(0, 60),
    attested_s=st.integers(0, 70),
    until_s=st.none() | st.integers(0, 90),
    block=st.sampled_from([2, 2, 2, 3, 4]),
    user=st.sampled_from(["", "u"]),
    computed=st.sampled_from([True, True, True, False]),
    judged=st.sampled_from([True, True, False]),
    hit=st.integers(0, 12),
    owed=st.integers(0, 4),
)


def possible(number: int, kept: Kept) -> Kept:
    """With counts that can be attested."""
    left = len(kept.tokens) - 1
    hit = min(kept.hit, left)
    return replace(kept, number=number, hit=hit, owed=min(kept.owed, left - hit))


def covered(later: Kept, earlier: Kept) -> int:
    """Tokens of a prompt that another promised, word for word as the docstring says."""
    if (
        earlier.until_s is None
        or not earlier.computed
        or (earlier.user, earlier.model) != (later.user, later.model)
    ):
        return 0
    if (
        earlier.attested_s + CLOCKS_APART_S > later.admitted_s
        or later.admitted_s + CLOCKS_APART_S > earlier.until_s
    ):
        return 0
    alike = 0
    while (
        alike < min(len(later.tokens), len(earlier.tokens)) and later.tokens[alike] == earlier.tokens[alike]
    ):
        alike += 1
    return alike // earlier.block * earlier.block


@given(st.lists(KEPT, min_size=2, max_size=8))
def test_what_is_found_is_what_looking_at_every_pair_finds(drawn: list[Kept]) -> None:
    kept = [possible(number, each) for number, each in enumerate(drawn, 1)]
    expected = {}
    for later in kept:
        longest = max(covered(later, earlier) for earlier in kept)
        could = min(longest, len(later.tokens) - 1) // later.block * later.block
        if later.judged and could > later.hit + later.owed:
            expected[UUID(int=later.number)] = could
    assert {each.request_id: each.promised_tokens for each in found(*kept)} == expected
