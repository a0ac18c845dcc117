import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.proof.attestation import DecodeAttestation, PrefillAttestation
from engine.proof.coverage import Attempt, CoverageBroken, grade, output_tokens

PREFILL = Attempt(0, "prefill", "p1", 0, 0)


def prefill(
    attempt: int = 0, worker: str = "p1", output_to: int = 0, computed: bool = True
) -> PrefillAttestation:
    return PrefillAttestation(
        request_id="r",
        attempt=attempt,
        stage="prefill",
        worker=worker,
        namespace="n",
        prompt_tokens=10,
        hit_tokens=0,
        owed_tokens=0,
        hit_device_tokens=0,
        hit_store_tokens=0,
        block_tokens=64,
        retention_class="chat",
        promised_until=None,
        prompt_commitment="",
        cached_prefix_commitment="",
        memo="",
        attested_at_ns=1,
        computed=computed,
        output_to=output_to,
    )


def decode(attempt: int, output_from: int, output_to: int, worker: str = "d1") -> DecodeAttestation:
    return DecodeAttestation(
        request_id="r",
        attempt=attempt,
        stage="decode",
        worker=worker,
        namespace="n",
        prompt_tokens=10,
        handoff_tokens=0,
        output_from=output_from,
        output_to=output_to,
        ended="stop",
        memo="",
        attested_at_ns=1,
    )


def test_a_prefill_and_a_decode_cover_a_request() -> None:
    attempts = [PREFILL, Attempt(1, "decode", "d1", 0, 5)]
    assert output_tokens(attempts) == 5
    assert grade(attempts, [prefill(), decode(1, 0, 5)]) == "attested"


def test_a_worker_may_have_generated_more_than_was_received_never_less() -> None:
    attempts = [PREFILL, Attempt(1, "decode", "d1", 0, 5)]
    assert grade(attempts, [prefill(), decode(1, 0, 9)]) == "attested"
    with pytest.raises(CoverageBroken):
        grade(attempts, [prefill(), decode(1, 0, 4)])


def test_the_first_token_of_a_prefill_is_covered_by_its_attestation() -> None:
    attempts = [Attempt(0, "prefill", "p1", 0, 1), Attempt(1, "decode", "d1", 1, 5)]
    assert grade(attempts, [prefill(output_to=1), decode(1, 1, 5)]) == "attested"
    with pytest.raises(CoverageBroken):
        grade(attempts, [prefill(output_to=0), decode(1, 1, 5)])


def test_the_range_of_a_killed_worker_is_counted_by_the_gateway() -> None:
    attempts = [PREFILL, Attempt(1, "decode", "d1", 0, 5), Attempt(2, "decode", "d2", 5, 8)]
    assert grade(attempts, [prefill(), decode(2, 5, 8, "d2")]) == "gateway-counted"


def test_a_request_that_reached_no_worker_is_unattested() -> None:
    assert grade([], []) == "unattested"


@pytest.mark.parametrize(
    "attempts",
    [
        [PREFILL, Attempt(1, "decode", "d1", 1, 5)],
        [PREFILL, Attempt(1, "decode", "d1", 0, 5), Attempt(2, "decode", "d2", 4, 8)],
        [Attempt(1, "decode", "d1", 0, 5)],
        [PREFILL, Attempt(1, "both", "d1", 0, 5)],
    ],
    ids=["gap", "overlap", "no prefill", "two prefills"],
)
def test_gaps_and_overlaps_are_refused(attempts: list[Attempt]) -> None:
    with pytest.raises(CoverageBroken):
        output_tokens(attempts)


def test_another_worker_than_the_accepted_one_cannot_attest() -> None:
    with pytest.raises(CoverageBroken):
        grade([PREFILL], [prefill(worker="p2")])


def test_a_prefill_that_was_not_computed_covers_nothing() -> None:
    with pytest.raises(CoverageBroken):
        grade([PREFILL], [prefill(computed=False)])


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_ranges_that_join_sum_to_their_tokens(sizes: list[int]) -> None:
    attempts, end = [PREFILL], 0
    for number, size in enumerate(sizes, 1):
        attempts.append(Attempt(number, "decode", "d1", end, end + size))
        end += size
    assert output_tokens(attempts) == end
