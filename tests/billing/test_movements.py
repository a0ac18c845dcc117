"""Money in, in both billing modes: what people move, on real Postgres."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.db.access import OWNER
from billing.errors import AmountExceeds, AmountInvalid, MovementConflict, ReasonMissing, StoreRefused
from billing.ledger.balance import BillingTerms
from billing.ledger.credit import Correction, Grant, Movement, Refund, WriteOff
from billing.money import Femto, femto_of
from billing.settlement.posting import post
from gateway.errors import answer_of

AT = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)
CHARGE = 1024 * 14_000_000 + 176 * 140_000_000 + 300 * 280_000_000
UNIT = femto_of("1")
HUGE = Femto(10**38 - 1)


def top_up(amount: str, key: str | None = None) -> Grant:
    return Grant(femto_of(amount), "topped_up", "paid", "ann", idempotency_key=key)


def granted(amount: str, **more: Any) -> Grant:
    return Grant(femto_of(amount), "granted", "welcome", "ann", **more)


def refund(amount: str, **more: Any) -> Refund:
    return Refund(femto_of(amount), "asked for", "ann", **more)


def write_off(amount: int, key: str | None = None) -> WriteOff:
    return WriteOff(Femto(amount), "goodwill", "ann", key)


async def move(house: Any, movement: Movement) -> Any:
    return await house.ledger.post(house.tenant_id, movement, AT)


async def balance(house: Any) -> Any:
    return await house.ledger.balance(house.tenant_id)


async def entries(house: Any, transaction_id: Any) -> dict[str, int]:
    async with house.database.transaction(OWNER) as connection:
        rows = await connection.execute(
            text("SELECT account, amount FROM ledger_entry WHERE transaction_id = :id"),
            {"id": transaction_id},
        )
        return {account: int(amount) for account, amount in rows}


async def postpaid(house: Any, limit: str = "10") -> None:
    await house.ledger.agree(house.tenant_id, BillingTerms("postpaid", femto_of(limit)), AT, actor="test")


async def charge(house: Any, requests: int = 1) -> None:
    await post(house.database, [house.event(number) for number in range(requests)])


@pytest.fixture(autouse=True)
async def the_books_add_up(house: Any) -> Any:
    yield
    assert await house.ledger.check_integrity() == []


async def test_the_same_top_up_twice_has_the_same_transaction_id(house: Any) -> None:
    """getlago/lago-api#5870: a top-up of 100 asked for twice, 10 granted before: 110, one transaction."""
    await move(house, granted("10"))
    answers = await asyncio.gather(*(move(house, top_up("100", "pay-1")) for _ in range(4)))
    again = await move(house, top_up("100", "pay-1"))
    assert {(posted.transaction_id, posted.balance.balance) for posted in [*answers, again]} == {
        (again.transaction_id, 110 * UNIT)
    }


async def test_a_payment_that_two_events_tell_of_is_credited_once(house: Any) -> None:
    """anomalyco/opencode#28402: a webhook delivered twice, by the same event or by another."""
    told = [
        Grant(femto_of("20"), "topped_up", f"paid, told by {event}", "webhook", idempotency_key="pi_1")
        for event in ("evt_1", "evt_1", "evt_2")
    ]
    posted = [*await asyncio.gather(*(move(house, each) for each in told)), await move(house, told[-1])]
    assert {(one.transaction_id, one.balance.balance) for one in posted} == {
        (posted[0].transaction_id, 20 * UNIT)
    }
    (row,) = await house.ledger.movements(house.tenant_id)
    assert (row.effect.amount, row.idempotency_key) == (-20 * UNIT, "pi_1")


async def test_a_top_up_that_failed_half_way_is_credited_by_its_retry(house: Any) -> None:
    """danny-avila/LibreChat#13812: the event is never marked as seen unless the credit is there too."""
    await move(house, Grant(HUGE, "topped_up", "paid", "ann"))
    with pytest.raises(StoreRefused):  # the key is written by then, the balance does not fit its column
        await move(house, top_up("1", "pay-1"))
    await move(house, Refund(UNIT, "room", "ann"))
    assert (await move(house, top_up("1", "pay-1"))).balance.balance == HUGE
    assert [row.idempotency_key for row in await house.ledger.movements(house.tenant_id)].count("pay-1") == 1


@pytest.mark.parametrize(
    "other",
    [
        top_up("101", "key"),
        granted("100", idempotency_key="key"),
        Grant(femto_of("100"), "topped_up", "paid", "ann", AT + timedelta(days=9), "key"),
        Grant(femto_of("100"), "topped_up", "paid", "ann", None, "key", priority=1),
        refund("100", idempotency_key="key"),
        write_off(100 * UNIT, "key"),
        Correction(femto_of("100"), "tenant", "why", "ann", "key"),
    ],
)
async def test_an_idempotency_key_with_another_body_is_409_and_the_first_answer_stays(
    house: Any, other: Movement
) -> None:
    first = await move(house, top_up("100", "key"))
    with pytest.raises(MovementConflict) as conflict:
        await move(house, other)
    assert answer_of(conflict.value).status == 409
    assert await move(house, top_up("100", "key")) == first


async def test_who_asks_again_may_word_it_otherwise(house: Any) -> None:
    first = await move(house, top_up("5", "key"))
    assert await move(house, Grant(femto_of("5"), "topped_up", "invoice 7", "bob", None, "key")) == first


@pytest.mark.parametrize(("reason", "actor"), [("", "ann"), ("why", ""), ("  ", "ann")])
def test_no_money_moves_without_a_reason_and_an_actor(reason: str, actor: str) -> None:
    for make in (
        lambda: Grant(UNIT, "granted", reason, actor),
        lambda: Refund(UNIT, reason, actor),
        lambda: WriteOff(UNIT, reason, actor),
        lambda: Correction(UNIT, "house", reason, actor),
    ):
        with pytest.raises(ReasonMissing):
            make()
    with pytest.raises(AmountInvalid):
        Refund(Femto(0), "why", "ann")


async def test_not_even_the_database_takes_a_movement_unexplained(house: Any) -> None:
    posted = await move(house, granted("1"))
    with pytest.raises(StoreRefused) as refused:
        async with house.database.transaction(OWNER) as connection:
            await connection.execute(
                text("UPDATE ledger_transaction SET reason = NULL WHERE id = :id"),
                {"id": posted.transaction_id},
            )
    assert refused.value.constraint == "ck_ledger_transaction_explained"


async def test_a_lower_priority_goes_before_a_sooner_expiry(house: Any) -> None:
    soon = await move(house, granted("0.00001", expires_at=AT + timedelta(days=1)))
    first = await move(house, granted("0.00001", priority=1))
    await charge(house)
    left = {row.transaction_id: row.remaining for row in await house.ledger.movements(house.tenant_id)}
    assert left == {first.transaction_id: 0, soon.transaction_id: 0}
    (event,) = [house.event(0)]
    async with house.database.transaction(OWNER) as connection:
        drawn = await connection.execute(
            text("SELECT lot_id FROM ledger_entry WHERE transaction_id = :id ORDER BY position"),
            {"id": event.request_id},
        )
        assert [row.lot_id for row in drawn][:2] == [first.transaction_id, soon.transaction_id]


async def test_paid_credit_is_refunded_at_most_what_remains_of_it(house: Any) -> None:
    await move(house, granted("50"))
    await move(house, top_up("10"))
    with pytest.raises(AmountExceeds, match=r"^10.5 is more than the paid credit that remains, which is 10$"):
        await move(house, refund("10.5"))
    posted = await move(house, refund("4"))
    assert await entries(house, posted.transaction_id) == {"topped_up": -4 * UNIT, "cash": 4 * UNIT}
    assert ((await balance(house)).granted, (await balance(house)).topped_up) == (50 * UNIT, 6 * UNIT)


async def test_a_refund_asked_for_twice_is_paid_once_also_when_nothing_remains(house: Any) -> None:
    await move(house, top_up("10"))
    answers = await asyncio.gather(*(move(house, refund("10", idempotency_key="back")) for _ in range(3)))
    assert len({posted.transaction_id for posted in answers}) == 1
    assert (await balance(house)).topped_up == 0


async def test_a_refund_of_one_payment_leaves_the_others(house: Any) -> None:
    first, second = [await move(house, top_up("10")) for _ in range(2)]
    with pytest.raises(AmountExceeds):
        await move(house, refund("11", lot_id=second.transaction_id))
    await move(house, refund("10", lot_id=second.transaction_id))
    left = {row.transaction_id: row.remaining for row in await house.ledger.movements(house.tenant_id)}
    assert (left[first.transaction_id], left[second.transaction_id]) == (10 * UNIT, 0)


async def test_debt_is_written_off_at_most_all_of_it(house: Any) -> None:
    await charge(house)
    assert (await balance(house)).topped_up == -CHARGE
    with pytest.raises(AmountExceeds, match="debt"):
        await move(house, write_off(CHARGE + 1))
    posted = await move(house, write_off(CHARGE))
    assert await entries(house, posted.transaction_id) == {"topped_up": CHARGE, "bad_debt": -CHARGE}
    assert posted.balance.balance == 0


async def test_a_correction_gives_back_or_draws_and_the_event_stays_what_it_was(house: Any) -> None:
    await move(house, top_up("1"))
    await charge(house)
    back = await move(house, Correction(Femto(CHARGE), "tenant", "billed twice", "ann"))
    assert await entries(house, back.transaction_id) == {"topped_up": CHARGE, "revenue": -CHARGE}
    more = await move(house, Correction(Femto(7), "house", "billed too little", "ann"))
    assert await entries(house, more.transaction_id) == {"topped_up": -7, "revenue": 7}
    assert (await balance(house)).total == UNIT - 7


async def test_paid_credit_that_ends_is_not_said_to_have_been_paid_back(house: Any) -> None:
    await move(house, Grant(UNIT, "topped_up", "paid", "ann", AT + timedelta(days=1)))
    await house.ledger.expire(AT + timedelta(days=1))
    (ended, _) = await house.ledger.movements(house.tenant_id)
    assert (ended.effect.kind, ended.effect.account, ended.effect.amount) == ("expiry", "breakage", UNIT)
    assert (ended.reason, ended.actor) == ("expired", "system")


async def test_a_postpaid_charge_is_owed_and_leaves_credit_for_the_invoice(house: Any) -> None:
    await postpaid(house)
    await move(house, granted("3"))
    await charge(house, 2)
    now = await balance(house)
    assert (now.granted, now.topped_up, now.receivable) == (3 * UNIT, 0, -2 * CHARGE)
    assert now.spendable == 10 * UNIT - 2 * CHARGE
    assert await entries(house, house.request_id(0)) == {"receivable": -CHARGE, "revenue": CHARGE}


async def test_what_a_postpaid_tenant_pays_in_pays_first_what_it_owes(house: Any) -> None:
    await postpaid(house)
    await charge(house)
    posted = await move(house, top_up("1"))
    assert await entries(house, posted.transaction_id) == {
        "receivable": CHARGE,
        "topped_up": UNIT - CHARGE,
        "cash": -UNIT,
    }
    assert posted.balance.balance == 10 * UNIT


async def test_a_receivable_is_written_off_and_corrected_too(house: Any) -> None:
    await postpaid(house)
    await charge(house, 2)
    written = await move(house, write_off(CHARGE))
    assert await entries(house, written.transaction_id) == {"receivable": CHARGE, "bad_debt": -CHARGE}
    corrected = await move(house, Correction(Femto(CHARGE), "tenant", "billed twice", "ann"))
    assert await entries(house, corrected.transaction_id) == {"receivable": CHARGE, "revenue": -CHARGE}
    assert (await balance(house)).spendable == 10 * UNIT


async def test_terms_change_at_once_under_a_newer_version_and_debt_stays_owed(house: Any) -> None:
    await charge(house)
    before = await balance(house)
    after = await house.ledger.agree(
        house.tenant_id, BillingTerms("postpaid", femto_of("2")), AT, actor="test"
    )
    assert (after.balance, after.version) == (2 * UNIT - CHARGE, before.version + 1)
    assert (await balance(house)).spendable == after.balance


async def test_charges_and_a_change_of_terms_at_once_agree_on_the_limit(house: Any) -> None:
    await asyncio.gather(charge(house, 5), postpaid(house, "4"), charge(house, 5))
    assert (await balance(house)).spendable == 4 * UNIT - 5 * CHARGE
    ((version,),) = [await _versions(house)]
    assert version == (4 * UNIT - 5 * CHARGE, (await balance(house)).version)


async def _versions(house: Any) -> list[tuple[int, int]]:
    balances = await post(house.database, [house.event(0)])
    return [(present.balance, present.version) for present in balances.values()]


@pytest.mark.parametrize(
    ("tampering", "rule"),
    [
        ("UPDATE balance SET receivable = receivable + 1 WHERE tenant_id = :tenant", "receivable balance"),
        (
            "UPDATE ledger_entry SET account = 'cash' WHERE tenant_id = :tenant AND account = 'revenue'",
            "touches cash",
        ),
    ],
)
async def test_tampering_with_what_is_owed_is_found(house: Any, tampering: str, rule: str) -> None:
    await postpaid(house)
    await charge(house)
    async with house.database.transaction(OWNER) as connection:
        await connection.execute(text(tampering), {"tenant": house.tenant_id})
    assert [fault for fault in await house.ledger.check_integrity() if rule in fault]
    async with house.database.transaction(OWNER) as connection:
        for repair in (
            f"UPDATE balance SET receivable = -{CHARGE} WHERE tenant_id = :tenant",  # noqa: S608  a number
            "UPDATE ledger_entry SET account = 'revenue' WHERE tenant_id = :tenant AND account = 'cash'",
        ):
            await connection.execute(text(repair), {"tenant": house.tenant_id})
