from dataclasses import astuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from billing.errors import UsageInvalid
from billing.usage import TokenUsage
from engine.proof.attestation import PrefillAttestation

COUNT = st.integers(0, 10**6)


def attested(prompt: int, hit: int, owed: int) -> PrefillAttestation:
    return PrefillAttestation(
        request_id="r",
        attempt=1,
        stage="prefill",
        worker="prefill-0",
        namespace="n",
        prompt_tokens=prompt,
        hit_tokens=hit,
        owed_tokens=owed,
        hit_device_tokens=0,
        hit_store_tokens=hit,
        block_tokens=64,
        retention_class="chat",
        promised_until=None,
        prompt_commitment="00",
        cached_prefix_commitment="00",
        memo="",
        attested_at_ns=0,
    )


@given(COUNT, COUNT, COUNT, COUNT)
def test_the_one_split_gives_disjoint_buckets_that_sum_to_the_prompt(
    blocks: int, owed: int, miss: int, output: int
):
    hit = 64 * blocks
    prompt = hit + owed + miss
    assume(miss >= 1)
    usage = TokenUsage.of(attested(prompt, hit, owed), output)
    assert astuple(usage) == (hit, owed, 0, miss, output)
    assert usage.prompt == prompt


@pytest.mark.parametrize(
    "buckets",
    [
        pytest.param((9, 0, 0, 5 - 9, 1), id="hit exceeds the prompt"),
        pytest.param((0, 0, 0, -5, 1), id="negative prompt"),
        pytest.param((64, 0, 0, 0, 1), id="a hit to the last token"),
        pytest.param((0, 64, 0, 0, 1), id="owed to the last token"),
        pytest.param((0, 0, 0, 0, 1), id="output without a prompt"),
        pytest.param((0, 0, 0, 1, -1), id="negative output"),
    ],
)
def test_impossible_counts_are_refused(buckets: tuple[int, int, int, int, int]):
    with pytest.raises(UsageInvalid):
        TokenUsage(*buckets)


def test_a_request_that_reached_no_worker_used_nothing():
    assert astuple(TokenUsage.none()) == (0, 0, 0, 0, 0)
