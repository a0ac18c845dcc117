"""Token counts on the wire: the public rating cases read back, and our own fields."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.errors import UsageMalformed
from recipe.usage import Buckets, chat_usage, messages_usage, read_usage

FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures" / "rating.json").read_text(encoding="utf-8"))
COUNT = st.integers(0, 10**9)


@pytest.mark.parametrize("case", FIXTURE["cases"], ids=lambda case: case["id"])
def test_buckets_of_each_rating_case(case: dict[str, Any]) -> None:
    read = read_usage(case["usage"])
    expected = {"write": 0, **case["buckets"]}
    assert {name: getattr(read, name) for name in expected} == expected


@pytest.mark.parametrize("case", FIXTURE["refused"]["cases"], ids=lambda case: case["id"])
def test_impossible_usage_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(UsageMalformed):
        read_usage(case["usage"])


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"prompt_tokens": 3},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": 3.5, "completion_tokens": 1},
        {"prompt_tokens": "3", "completion_tokens": 1},
        {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 5},
        {
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "prompt_cache_hit_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        {
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        {"input_tokens": 3, "output_tokens": 1, "cache_read_input_tokens": -1},
        {"input_tokens": 3, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 4}},
        {"input_tokens": 3, "output_tokens": 1, "total_tokens": 5},
        {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4, "cache_read_input_tokens": 1},
        {
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 2},
        },
        {
            "input_tokens": 3,
            "output_tokens": 1,
            "cache_creation_input_tokens": 3,
            "cache_creation": {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 1},
        },
    ],
)
def test_contradictory_usage_is_refused(usage: dict[str, Any]) -> None:
    with pytest.raises(UsageMalformed):
        read_usage(usage)


def test_null_details_count_nothing() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None}
    assert read_usage(usage) == Buckets(hit=0, miss=3, output=1)


@pytest.mark.parametrize(
    "usage",
    [
        {
            "prompt_tokens": 1200,
            "completion_tokens": 300,
            "prompt_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 100},
            "completion_tokens_details": {"reasoning_tokens": 200},
        },
        {
            "input_tokens": 1200,
            "input_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 100},
            "output_tokens": 300,
            "output_tokens_details": {"reasoning_tokens": 200},
            "total_tokens": 1500,
        },
    ],
)
def test_cached_written_and_reasoning_tokens_of_openais_shapes_are_parts(usage: dict[str, Any]) -> None:
    assert read_usage(usage) == Buckets(hit=1024, miss=76, output=300, write=100, reasoning=200)


def test_anthropics_counts_stand_beside_each_other_and_writes_by_age_are_the_same_writes() -> None:
    usage = {
        "input_tokens": 76,
        "output_tokens": 300,
        "cache_read_input_tokens": 1024,
        "cache_creation_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40},
    }
    assert read_usage(usage) == Buckets(hit=1024, miss=76, output=300, write=100)
    del usage["cache_creation_input_tokens"]
    assert read_usage(usage).write == 100


@given(hit=COUNT, owed=COUNT, miss=COUNT, output=COUNT, reasoning=COUNT)
def test_what_a_client_reads_is_what_was_metered(
    hit: int, owed: int, miss: int, output: int, reasoning: int
) -> None:
    metered = Buckets(hit=hit, owed=owed, miss=miss, output=output + reasoning, reasoning=reasoning)
    wire = chat_usage(metered)
    assert wire["prompt_cache_hit_tokens"] + wire["prompt_cache_miss_tokens"] == wire["prompt_tokens"]
    assert wire["prompt_tokens_details"]["cached_tokens"] == hit + owed
    read = read_usage(wire)
    assert (read.hit, read.miss, read.output, read.reasoning, read.prompt) == (
        hit + owed,
        miss,
        output + reasoning,
        reasoning,
        metered.prompt,
    )


@given(hit=COUNT, owed=COUNT, miss=COUNT, output=COUNT)
def test_messages_and_chat_tell_of_the_same_tokens(hit: int, owed: int, miss: int, output: int) -> None:
    metered = Buckets(hit=hit, owed=owed, miss=miss, output=output)
    wire = messages_usage(metered)
    assert read_usage(wire) == read_usage(chat_usage(metered))
    assert (wire["cache_read_input_tokens"], wire["input_tokens"]) == (hit + owed, miss)
