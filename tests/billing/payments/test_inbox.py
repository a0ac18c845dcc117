"""Webhooks: signed or refused, stored and applied once, in whatever order and however late they come."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from billing.db.access import OWNER, SETTLER
from billing.errors import StoreUnavailable, WebhookRefused
from billing.ledger.credit import Grant
from billing.money import femto_of
from billing.payments import repository
from billing.payments.inbox import Inbox
from tests.billing.conftest import NOON
from tests.billing.payments.conftest import Till
from tests.billing.payments.fake_stripe import WEBHOOK_SECRET

UNIT = femto_of("1")


async def events_of(till: Till) -> dict[str, tuple[str, str | None]]:
    return {event.id: (event.outcome, event.reason) for event in await till.inbox.events(rows_max=10_000)}


async def test_the_same_top_up_of_100_twice_beside_10_granted_leaves_110_and_one_transaction(
    till: Till,
) -> None:
    """getlago/lago-api#5870"""
    ten = Grant(10 * UNIT, "granted", "welcome", "test")
    await till.house.ledger.grant(till.house.tenant_id, ten, NOON)
    till.paid(10_000)
    (event,) = till.fake.told("payment_intent.succeeded")
    first, second = await till.deliver(event), await till.deliver(event)
    assert (first.new, second.new) == (True, False)
    assert (await till.balance()).total == 110 * UNIT
    assert second.balances == first.balances, "who is told twice learns the balance twice"
    moved = [row for row in await till.house.ledger.movements(till.house.tenant_id) if row.actor == "stripe"]
    assert [row.idempotency_key for row in moved] == [f"stripe:{event['data']['object']['id']}:1"]
    again = dict(event, id="evt_other")  # the same payment by another event
    assert (await till.deliver(again)).new
    assert (await till.balance()).total == 110 * UNIT


async def test_two_deliveries_at_once_are_one_credit(till: Till) -> None:
    """anomalyco/opencode#28402"""
    till.paid(10_000)
    (event,) = till.fake.told("payment_intent.succeeded")
    receipts = await asyncio.gather(*(till.deliver(event) for _ in range(6)))
    assert sum(receipt.new for receipt in receipts) == 1
    assert await till.cents() == 10_000
    assert await till.house.ledger.check_integrity() == []


WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


async def test_what_is_told_of_one_payment_is_heard_one_after_the_other(till: Till) -> None:
    """Else a refund that finds no payment would wait, and the payment come just then not find it waiting."""
    payment_id = till.paid(1_000)["id"]
    till.fake.make_refund(payment_intent=payment_id, amount="400")
    told = till.fake.told("payment_intent.succeeded", "refund.created")
    async with till.house.database.transaction(SETTLER) as connection:
        await repository.lock(connection, payment_id)
        deliveries = [asyncio.create_task(till.deliver(event)) for event in told]
        async with asyncio.timeout(30):
            while (await connection.execute(text(WAITING))).scalar_one() < len(deliveries):
                await asyncio.sleep(0.01)
    await asyncio.gather(*deliveries)
    assert await till.cents() == 600
    assert {event.outcome for event in await till.inbox.events(tenant_id=till.house.tenant_id)} == {"applied"}


async def refuse(till: Till, table: str, *, on: bool) -> None:
    """Have Postgres fail whoever writes to a table."""
    statements = ["DROP TRIGGER IF EXISTS fail ON {0}", "DROP FUNCTION IF EXISTS fail"]
    if on:
        statements += [
            """CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END $$""",
            "CREATE TRIGGER fail BEFORE INSERT ON {0} FOR EACH STATEMENT EXECUTE FUNCTION fail()",
        ]
    async with till.house.database.transaction(OWNER) as connection:
        for statement in statements:
            await connection.execute(text(statement.format(table)))


@pytest.mark.parametrize("table", ["payment", "ledger_transaction", "ledger_entry", "audit_event"])
async def test_an_event_whose_credit_failed_is_credited_by_the_next_delivery(till: Till, table: str) -> None:
    """danny-avila/LibreChat#13812, openmeterio/openmeter#5118: the event is not marked before its effect."""
    till.paid(10_000)
    (event,) = till.fake.told("payment_intent.succeeded")
    await refuse(till, table, on=True)
    try:
        with pytest.raises(StoreUnavailable):
            await till.deliver(event)
    finally:
        await refuse(till, table, on=False)
    assert event["id"] not in await events_of(till)
    assert (await till.deliver(event)).new
    assert await till.cents() == 10_000


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (None, "no Stripe-Signature"),
        ("", "no Stripe-Signature"),
        ("v1=ab", "no Stripe-Signature"),
        ("t=1,t=2,v1=ab", "no Stripe-Signature"),
        ("t=٣,v1=ab", "no Stripe-Signature"),
        ("t=99999999999999999999,v1=ab", "no Stripe-Signature"),
        ("t={stamp}", "secret"),
        ("t={stamp},v0={signature}", "secret"),
        ("t={stamp},v1=é", "secret"),
        ("t={stamp},v1={signature}0", "secret"),
        ("t=1{stamp},v1={signature}", "secret"),
    ],
)
async def test_a_webhook_that_is_not_signed_is_refused_and_not_stored(
    till: Till, header: str | None, says: str
) -> None:
    till.paid()
    event = till.fake.events[-1]
    body, good = till.fake.signed(event)
    stamp, signature = (pair.partition("=")[2] for pair in good.split(","))
    sent = header and header.format(stamp=stamp, signature=signature)
    with pytest.raises(WebhookRefused, match=says):
        await till.inbox.receive(body, sent, till.at)
    with pytest.raises(WebhookRefused, match="secret"):
        await till.inbox.receive(body.replace(b"10000", b"90000"), good, till.at)
    with pytest.raises(WebhookRefused):
        await Inbox(till.house.database, "whsec_another").receive(body, good, till.at)
    with pytest.raises(WebhookRefused, match="no secret"):
        await Inbox(till.house.database).receive(body, good, till.at)
    assert event["id"] not in await events_of(till)


async def test_one_of_two_signatures_is_enough_while_a_secret_is_rolled(till: Till) -> None:
    till.paid()
    body, header = till.fake.signed(till.fake.events[-1])
    assert (await till.inbox.receive(body, header.replace(",", ",v1=00,"), till.at)).new


@pytest.mark.parametrize(("seconds", "taken"), [(300, True), (301, False), (-300, True), (-301, False)])
async def test_a_signature_is_good_for_300_seconds_by_the_clock_of_receipt(
    till: Till, seconds: int, taken: bool
) -> None:
    till.paid()
    body, header = till.fake.signed(till.fake.events[-1])
    at = till.at + timedelta(seconds=seconds)
    if taken:
        assert (await till.inbox.receive(body, header, at)).new
    else:
        with pytest.raises(WebhookRefused, match="300 s"):
            await till.inbox.receive(body, header, at)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"id": 1}', b"\xff", b'"evt"'])
async def test_what_is_signed_and_says_nothing_is_refused(till: Till, body: bytes) -> None:
    import hmac

    stamp = str(int(till.at.timestamp()))
    signature = hmac.digest(WEBHOOK_SECRET.encode(), stamp.encode() + b"." + body, "sha256").hex()
    with pytest.raises(WebhookRefused, match="no event"):
        await till.inbox.receive(body, f"t={stamp},v1={signature}", till.at)


async def test_an_event_73_hours_late_is_applied(till: Till) -> None:
    till.paid(10_000)
    (event,) = till.fake.told("payment_intent.succeeded")
    assert (await till.deliver(event, at=till.at + timedelta(hours=73))).new
    assert await till.cents() == 10_000


UNREAD = [
    (
        {"type": "payout.paid", "data": {"object": {"id": "po_1", "object": "payout"}}},
        "payout moves no money",
    ),
    ({"type": "x.y", "data": {"object": {"id": "x_1", "object": "new_thing", "odd": [1]}}}, "new_thing"),
    (
        {"type": "refund.created", "data": {"object": {"id": "re_1", "object": "refund", "amount": "x"}}},
        "not read",
    ),
    ({"type": "v1.billing.meter.error", "object": "v2.core.event", "data": None}, "version 1"),
    (
        {"data": {"object": {"id": "re_2", "object": "refund", "status": "x", "currency": "usd"}}},
        "no payment",
    ),
    ({"data": {"object": {"id": "re_2", "object": "refund", "amount": 1}}}, "without currency"),
]


@pytest.mark.parametrize(("change", "reason"), UNREAD)
async def test_what_concerns_us_not_is_stored_and_ignored_with_the_reason(
    till: Till, change: dict[str, Any], reason: str
) -> None:
    till.paid()
    event_id = till.fake.new_id("evt_odd")
    receipt = await till.deliver(till.fake.events[-1] | {"id": event_id} | change)
    assert receipt.outcome is not None
    assert receipt.outcome.name == "ignored"
    outcome, said = (await events_of(till))[event_id]
    assert outcome == "ignored"
    assert reason in (said or "")


async def test_a_payment_that_is_no_top_up_or_in_another_currency_is_not_credited(till: Till) -> None:
    till.paid(kvitto_purpose="donation")
    euro = till.paid()
    await till.deliver_all()
    assert await till.cents() == 10_000
    odd = json.loads(json.dumps(till.fake.told("payment_intent.succeeded")[-1]))
    odd["id"], odd["data"]["object"]["currency"], odd["data"]["object"]["id"] = "evt_eur", "eur", "pi_eur"
    receipt = await till.deliver(odd)
    assert receipt.outcome is not None
    assert receipt.outcome.reason == "it is in EUR, the tenant pays in USD"
    assert await till.cents() == 10_000
    assert euro["id"] in await till.rows()


async def test_a_customer_linked_later_gets_what_was_paid_before(till: Till) -> None:
    other = await till.house.other_tenant()
    customer_id = till.fake.make_customer()["id"]
    late = Till(other, till.fake, till.stripe, till.inbox, till.outbox, till.payments, customer_id)
    paid = late.paid(5_000)
    till.fake.make_refund(payment_intent=paid["id"], amount="2000")
    for event in reversed(till.fake.events):
        await late.deliver(event)
    assert await late.cents() == 0
    waiting = {reason for outcome, reason in (await events_of(till)).values() if outcome == "waiting"}
    assert f"{customer_id} is not known" in waiting
    balances = await till.payments.link(other.tenant_id, customer_id, till.at, actor="test")
    assert await late.cents() == 3_000
    assert [version.balance for version in balances] == [30 * UNIT]
    assert not {
        event.id for event in await till.inbox.events(tenant_id=other.tenant_id) if event.outcome == "waiting"
    }


async def test_an_event_that_was_ignored_can_be_applied_again(till: Till) -> None:
    till.paid()
    (event,) = till.fake.told("payment_intent.succeeded")
    async with till.house.database.transaction(SETTLER) as connection:
        unlink = "UPDATE payment_customer SET customer_id = 'cus_typo' WHERE tenant_id = :tenant"
        await connection.execute(text(unlink), {"tenant": till.house.tenant_id})
    await till.deliver(event)
    assert await till.cents() == 0
    async with till.house.database.transaction(SETTLER) as connection:
        link = "UPDATE payment_customer SET customer_id = :customer WHERE customer_id = 'cus_typo'"
        await connection.execute(text(link), {"customer": till.customer_id})
    await till.inbox.retry(event["id"], till.at)
    assert await till.cents() == 10_000
    assert not (await till.inbox.retry(event["id"], till.at)).new
