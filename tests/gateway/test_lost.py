"""Which calls of a lost request had been accepted, told from attestations alone."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.receipts.memo import Memo
from billing.receipts.receipt import Receipt
from billing.request_id import mint
from billing.usage import TokenUsage
from engine.proof.attestation import Attestation
from engine.proof.coverage import output_tokens
from gateway.lost import LostRequest, event_of, proven
from tests.attested import decode, prefill

ID = UUID("0199f5a0-0000-7000-8000-000000000000")


def both(attempt: int, output_to: int, **fields: Any) -> list[Attestation]:
    worker = {"stage": "both", "worker": "b1"}
    return [prefill(ID, attempt, **worker), decode(ID, attempt, 0, output_to, **worker, **fields)]


def ranges(attestations: list[Attestation]) -> list[tuple[int, int, int]] | None:
    found = proven(attestations)
    if found is None:
        return None
    assert output_tokens(found.attempts) == found.output_tokens
    usage = TokenUsage.of(found.prefill, found.output_tokens)
    receipt = Receipt.of(ID, usage, found.attempts, tuple(attestations))
    assert (receipt.grade, receipt.finding) == ("attested", None)
    return [(one.attempt, one.output_from, one.output_to) for one in found.attempts]


CASES = {
    "prefill and decode": ([prefill(ID), decode(ID, 1, 0, 5)], [(0, 0, 0), (1, 0, 5)]),
    "prefill's first token and a decode": (
        [prefill(ID, output_to=1), decode(ID, 1, 1, 5)],
        [(0, 0, 1), (1, 1, 5)],
    ),
    "a first token alone": ([prefill(ID, output_to=1)], [(0, 0, 1)]),
    "one worker for both": (both(0, 5), [(0, 0, 5)]),
    "a prefill alone": ([prefill(ID)], None),
    "a decode alone": ([decode(ID, 1, 0, 5)], None),
    "a prompt that was not computed": ([prefill(ID, computed=False), decode(ID, 1, 0, 5)], None),
    "both, ended before its prompt": (
        [prefill(ID, stage="both", computed=False), decode(ID, 0, 0, 0, stage="both", worker="p1")],
        None,
    ),
    "a decode that had not begun": ([prefill(ID), decode(ID, 1, 0, 0, ended="abort")], [(0, 0, 0)]),
    "a stream that went on elsewhere": (
        [prefill(ID), decode(ID, 1, 0, 7, ended="error"), decode(ID, 2, 5, 9)],
        [(0, 0, 0), (1, 0, 5), (2, 5, 9)],
    ),
    "a stream that went on from a worker for both": (
        [*both(0, 7, ended="abort"), decode(ID, 1, 5, 9)],
        [(0, 0, 5), (1, 5, 9)],
    ),
    "tokens of a first try that its gateway never had": (
        [prefill(ID), decode(ID, 1, 0, 7, ended="abort"), decode(ID, 2, 0, 2)],
        [(0, 0, 0), (2, 0, 2)],
    ),
    "a call nobody attests, and one that went on from it": (
        [prefill(ID), decode(ID, 2, 5, 9)],
        None,
    ),
    "a call that went on from one nobody attests, behind one that is attested": (
        [prefill(ID), decode(ID, 1, 0, 4, ended="abort"), decode(ID, 3, 6, 9)],
        [(0, 0, 0), (1, 0, 4)],
    ),
    "two prefills, the later one accepted": (
        [prefill(ID), prefill(ID, 1), decode(ID, 2, 0, 5)],
        [(1, 0, 0), (2, 0, 5)],
    ),
    "a second prefill that was not computed": (
        [prefill(ID), prefill(ID, 1, computed=False), decode(ID, 2, 0, 5)],
        [(0, 0, 0), (2, 0, 5)],
    ),
    "begun anew after a decode that was given up": (
        [prefill(ID), decode(ID, 1, 0, 3, ended="error"), prefill(ID, 2)],
        None,
    ),
    "one more for both after another": (
        [*both(0, 3, ended="error"), *both(1, 5)],
        [(1, 0, 5)],
    ),
    "both, whose output somebody else made": (
        [prefill(ID, stage="both"), decode(ID, 1, 0, 5)],
        [(0, 0, 0), (1, 0, 5)],
    ),
    "both, whose prompt nobody attests": (
        [prefill(ID), decode(ID, 1, 0, 5, stage="both")],
        None,
    ),
    "a call that went back behind the one before": (
        [prefill(ID), decode(ID, 1, 0, 4), decode(ID, 2, 4, 8), decode(ID, 3, 3, 9)],
        [(0, 0, 0), (1, 0, 3), (3, 3, 9)],
    ),
    "nothing at all": ([], None),
}


@pytest.mark.parametrize(("attestations", "expected"), CASES.values(), ids=CASES.keys())
def test_the_accepted_calls_are_found(attestations: list[Attestation], expected: Any) -> None:
    assert ranges(attestations) == expected
    assert ranges(attestations[::-1]) == expected


@given(st.data())
def test_whatever_way_a_stream_took_it_is_found_again(data: st.DataObject) -> None:
    """A request is run call by call, each making more tokens than were received; its lines are shuffled."""
    first_token = data.draw(st.booleans())
    lines: list[Attestation] = [prefill(ID, output_to=int(first_token))]
    accepted, received = [(0, 0, int(first_token))], int(first_token)
    tries = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5))
    for attempt, (taken, unseen) in enumerate(tries, 1):
        last = attempt == len(tries)
        made = taken if last else taken + unseen
        lines.append(decode(ID, attempt, received, received + made, ended="stop" if last else "abort"))
        if taken:
            accepted.append((attempt, received, received + taken))
        received += taken
    random.Random(data.draw(st.integers())).shuffle(lines)  # noqa: S311 -- an order, not a secret
    assert ranges(lines) == accepted


ADMITTED = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
AT_NS = int(ADMITTED.timestamp()) * 10**9
CHEAP, DEAR = Rates(hit=1, miss=10, output=100), Rates(hit=2, miss=20, output=200)
SECOND = 10**9


def row(instant: Any, rates: Rates, effective_from: datetime) -> PriceRow:
    return PriceRow(model="m", currency="USD", effective_from=effective_from, instant=instant, standard=rates)


def book(instant: Any) -> PriceBook:
    """Prices that double ten seconds after the admission."""
    earlier = row(instant, CHEAP, ADMITTED - timedelta(days=1))
    return PriceBook((earlier, row(instant, DEAR, ADMITTED + timedelta(seconds=10))))


def settled(instant: Any, attested_at_ns: int, now_s: float = 60.0, **fields: Any) -> Any:
    lines = [prefill(ID, attested_at_ns=1), decode(ID, 1, 0, 5, attested_at_ns=attested_at_ns, **fields)]
    found = proven(lines)
    assert found is not None
    memo = Memo("ten_a", "key_a", "m", "chat", book(instant).row("m", "USD", ADMITTED).id)
    request_id = mint(ADMITTED, bytes(10))
    now = ADMITTED + timedelta(seconds=now_s)
    return event_of(LostRequest(request_id, found, memo, "USD"), book(instant), now)


@pytest.mark.parametrize(
    ("instant", "attested_s", "rated_s", "charge"),
    [
        ("admitted", 20, 0, 10 * 10 + 5 * 100),
        ("completed", 9, 9, 10 * 10 + 5 * 100),
        ("completed", 10, 10, 10 * 20 + 5 * 200),
        ("completed", -5, 0, 10 * 10 + 5 * 100),
        ("completed", 10**12, 60, 10 * 20 + 5 * 200),
    ],
    ids=["at admission", "before the change", "from the change on", "a slow clock", "a mad clock"],
)
def test_the_rule_of_the_price_says_which_instant_rates(
    instant: Any, attested_s: int, rated_s: int, charge: int
) -> None:
    event = settled(instant, AT_NS + attested_s * SECOND)
    assert event.rated_at == ADMITTED + timedelta(seconds=rated_s)
    assert event.charge.amount == charge


@pytest.mark.parametrize(
    ("ended", "status", "output"),
    [("stop", "completed", 5), ("length", "completed", 5), ("abort", "aborted", 5), ("error", "failed", 0)],
)
def test_how_the_last_decode_ended_is_how_the_request_did(ended: Any, status: str, output: int) -> None:
    event = settled("admitted", AT_NS, ended=ended)
    assert (event.status, event.usage.output) == (status, output)
    assert bool(event.attempts) == bool(event.charge.amount) == (status != "failed")


def test_a_lost_request_is_rated_at_its_tier_and_its_tenants_own_price() -> None:
    found = proven([prefill(ID, attested_at_ns=1), decode(ID, 1, 0, 5, attested_at_ns=AT_NS)])
    assert found is not None
    public = row("admitted", CHEAP, ADMITTED - timedelta(days=1))
    own = replace(public, tenant_id="ten_a", standard=replace(DEAR, batch=Rates(hit=3, miss=30, output=300)))
    prices = PriceBook((public, own))
    request_id = mint(ADMITTED, bytes(10))

    def charge(tenant_id: str, tier: Any) -> Any:
        memo = Memo(tenant_id, "key_a", "m", "chat", own.id, tier)
        return event_of(LostRequest(request_id, found, memo, "USD"), prices, ADMITTED).charge

    assert charge("ten_b", "standard").amount == 10 * 10 + 5 * 100
    assert charge("ten_a", "standard").amount == 10 * 20 + 5 * 200
    batch = charge("ten_a", "batch")
    assert (batch.amount, batch.tier, batch.price_row_id) == (10 * 30 + 5 * 300, "batch", own.id)
