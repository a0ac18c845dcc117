"""Settlement against real Postgres: exactly once, exactly the charge, whatever comes between."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from billing.db.transaction import Database
from billing.errors import StoreRefused, StoreUnavailable, UsageInvalid
from billing.ledger.balance import BalanceVersion
from billing.money import femto_of
from billing.receipts.service import Receipts
from billing.settlement.batch import Settlement
from billing.settlement.idempotency import ANSWERED, KEPT_FOR, IdempotencyRecord
from billing.usage import TokenUsage
from engine.proof.coverage import Attempt
from tests.billing.conftest import CHARGE, NOON, TEN, assert_charged, rows_of


async def test_a_settled_request_has_its_event_charge_attempts_and_attestation(
    house: Any, settlement: Settlement
):
    await house.topped_up("10")
    event = house.event()
    assert await settlement.settle(event) == BalanceVersion(house.tenant_id, TEN - CHARGE, 2)
    await assert_charged(house, 1)
    receipt = (await Receipts(house.database).of([event.request_id]))[event.request_id]
    assert (receipt.usage, receipt.attempts) == (event.usage, event.attempts)
    assert receipt.attestations == tuple(one.attestation for one in event.attestations)


async def test_requests_that_finish_together_share_a_transaction(house: Any, settlement: Settlement):
    await house.topped_up("10")
    balances = await asyncio.gather(*(settlement.settle(house.event(n)) for n in range(200)))
    assert len({balance.version for balance in balances}) < 20
    await assert_charged(house, 200)


async def test_a_request_settled_twice_at_once_and_again_later_is_charged_once(
    house: Any, settlement: Settlement
):
    await house.topped_up("10")
    event = house.event()
    both = await asyncio.gather(settlement.settle(event), settlement.settle(event))
    again = await settlement.settle(event)
    assert {balance.balance for balance in (*both, again)} == {TEN - CHARGE}
    assert again.version == 2
    await assert_charged(house, 1)


async def test_a_second_event_of_the_same_request_changes_nothing(house: Any, settlement: Settlement):
    await house.topped_up("10")
    await settlement.settle(house.event(output=300))
    await settlement.settle(house.event(output=1))
    await assert_charged(house, 1)


async def test_gateways_that_settle_the_same_requests_of_the_same_tenants_charge_each_once(house: Any):
    other = await house.other_tenant()
    for tenant in (house, other):
        await tenant.topped_up("10")
    gateways = [Settlement(house.database, batch_max=7) for _ in range(3)]
    await asyncio.gather(*(gateway.start() for gateway in gateways))
    events = [tenant.event(n) for n in range(40) for tenant in (house, other)]
    shuffled = [events, events[::-1], events[40:] + events[:40]]
    await asyncio.gather(
        *(gateway.settle(event) for gateway, order in zip(gateways, shuffled, strict=True) for event in order)
    )
    await asyncio.gather(*(gateway.close() for gateway in gateways))
    for tenant in (house, other):
        await assert_charged(tenant, 40)


async def test_a_poisoned_event_fails_only_itself(house: Any, settlement: Settlement):
    await house.topped_up("10")
    charge = house.event().charge
    poisoned = [
        replace(house.event(100), key_id="key_of_nobody"),
        replace(house.event(101), charge=replace(charge, currency="CNY")),
        replace(house.event(102), charge=replace(charge, price_row_id="unpublished")),
        replace(house.event(103), model="nul \0"),
        house.event(104, output=2**31),
    ]
    good = [house.event(n) for n in range(10)]
    answers = await asyncio.gather(
        *(settlement.settle(event) for event in (*good[:5], *poisoned, *good[5:])), return_exceptions=True
    )
    assert all(isinstance(answer, StoreRefused) for answer in answers[5:10])
    assert all(isinstance(answer, BalanceVersion) for answer in (*answers[:5], *answers[10:]))
    await assert_charged(house, 10)


async def test_a_request_that_costs_more_than_there_is_becomes_debt(house: Any, settlement: Settlement):
    """pollinations/pollinations#8112: the overage is recorded as a debt, not clamped to zero."""
    await house.topped_up("0.00001")
    assert (await settlement.settle(house.event())).balance == femto_of("0.00001") - CHARGE < 0
    await assert_charged(house, 1, femto_of("0.00001"))


async def test_a_failed_request_is_an_event_that_costs_nothing(house: Any, settlement: Settlement):
    await house.topped_up("10")
    event = house.event()
    free = replace(event.charge, cache_hit=0, cache_miss=0, output=0)
    nothing = TokenUsage.none()
    await settlement.settle(
        replace(event, status="failed", usage=nothing, charge=free, attempts=(), attestations=())
    )
    (row,) = await rows_of(house)
    assert (row.status, row.charge) == ("failed", 0)
    await assert_balance(house, TEN)


async def assert_balance(house: Any, total: int) -> None:
    assert (await house.ledger.balance(house.tenant_id)).total == total
    assert await house.ledger.check_integrity() == []


async def test_when_postgres_stays_away_the_caller_is_told(house: Any):
    nowhere = Database("postgresql+asyncpg://kvitto:x@/kvitto?host=/nowhere")
    settlement = Settlement(nowhere, retry_delays_ms=(1, 1))
    await settlement.start()
    with pytest.raises(StoreUnavailable):
        await settlement.settle(house.event())
    await settlement.close()
    await nowhere.close()


async def test_closing_settles_what_has_arrived_and_refuses_what_comes_later(house: Any):
    await house.topped_up("10")
    settlement = Settlement(house.database, batch_max=3)
    await settlement.start()
    settling = [asyncio.create_task(settlement.settle(house.event(n))) for n in range(10)]
    await asyncio.sleep(0)
    await settlement.close()
    assert all([isinstance(await task, BalanceVersion) for task in settling])
    with pytest.raises(StoreUnavailable):
        await settlement.settle(house.event(99))
    await assert_charged(house, 10)


async def test_a_caller_that_is_cancelled_has_not_undone_its_charge(house: Any):
    await house.topped_up("10")
    settlement = Settlement(house.database)
    await settlement.start()
    settling = asyncio.create_task(settlement.settle(house.event()))
    await asyncio.sleep(0)
    settling.cancel()
    await settlement.close()
    assert settling.cancelled()
    await assert_charged(house, 1)


async def test_the_sweeper_learns_which_requests_have_an_event(house: Any, settlement: Settlement):
    await settlement.settle(house.event(1))
    asked = [house.request_id(n) for n in range(3)]
    assert await settlement.settled(asked) == {house.request_id(1)}
    assert await settlement.settled([]) == set()


def test_an_event_holds_no_more_reasoning_than_output_and_one_instant(house: Any):
    with pytest.raises(UsageInvalid):
        replace(house.event(), reasoning_tokens=301)
    with pytest.raises(UsageInvalid):
        replace(house.event(), rated_at=house.event().rated_at.replace(hour=13))


@pytest.mark.parametrize(
    "attempts",
    [
        (),
        (Attempt(0, "prefill", "p1", 0, 0), Attempt(1, "decode", "d1", 0, 299)),
        (Attempt(0, "prefill", "p1", 0, 1), Attempt(1, "decode", "d1", 0, 299)),
        (Attempt(1, "decode", "d1", 0, 300),),
        (Attempt(0, "both", "d1", 0, 200), Attempt(1, "both", "d2", 200, 300)),
    ],
    ids=["none", "fewer tokens", "an overlap", "no prompt", "the prompt twice"],
)
def test_the_attempts_of_an_event_cover_what_it_bills(house: Any, attempts: tuple[Attempt, ...]):
    with pytest.raises(UsageInvalid):
        replace(house.event(output=300), attempts=attempts)


def test_an_event_that_bills_nothing_accepted_nothing(house: Any):
    event = house.event(output=0)
    with pytest.raises(UsageInvalid):
        replace(event, usage=TokenUsage.none())
    assert replace(event, attempts=(Attempt(0, "prefill", "p1", 0, 0),)).usage.prompt == 1200


def answering(house: Any, event: Any, body: bytes = b"body") -> Any:
    """The event, as the answer to an idempotency key."""
    record = IdempotencyRecord(house.tenant_id, b"key", body, event.request_id, event.admitted_at)
    return replace(event, answers=record)


async def test_the_retry_of_a_refused_event_is_metered_under_the_same_key(house: Any, settlement: Settlement):
    """openmeterio/openmeter#5118: a dedupe key is never taken by a write that failed."""
    await house.topped_up("10")
    refused = replace(answering(house, house.event()), key_id="key_nobody")
    with pytest.raises(StoreRefused):
        await settlement.settle(refused)
    assert await settlement.answered(house.tenant_id, b"key", NOON) is None
    await settlement.settle(answering(house, house.event()))
    await assert_charged(house, 1)


async def test_of_two_requests_that_answer_one_key_one_is_charged(house: Any, settlement: Settlement):
    await house.topped_up("10")
    events = [answering(house, house.event(number)) for number in range(2)]
    ends = await asyncio.gather(*map(settlement.settle, events), return_exceptions=True)
    assert sorted(map(type, ends), key=str) == sorted([BalanceVersion, StoreRefused], key=str)
    (refused,) = [end for end in ends if isinstance(end, StoreRefused)]
    assert refused.constraint == ANSWERED
    await assert_charged(house, 1)
    await asyncio.gather(settlement.settle(house.event(2)), settlement.settle(house.event(3)))
    await assert_charged(house, 3)


async def test_an_answer_settled_again_is_its_own(house: Any, settlement: Settlement):
    await house.topped_up("10")
    event = answering(house, house.event())
    assert await settlement.settle(event) == await settlement.settle(event)
    assert await settlement.answered(house.tenant_id, b"key", NOON) == event.answers


async def test_the_answer_to_a_key_is_forgotten_after_a_day(house: Any, settlement: Settlement):
    await house.topped_up("10")
    await settlement.settle(answering(house, house.event()))
    day = NOON + KEPT_FOR
    assert await settlement.answered(house.tenant_id, b"key", day) is None
    later = answering(house, house.event(1, at=day))
    await settlement.settle(later)
    await assert_charged(house, 2)
    await settlement.forget_answers(day)
    assert await settlement.answered(house.tenant_id, b"key", day) == later.answers
    assert await settlement.forget_answers(day + KEPT_FOR) >= 1
    assert await settlement.answered(house.tenant_id, b"key", NOON) is None
