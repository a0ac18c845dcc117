"""Invoices and usage that Stripe is told of: once, in whatever attempt."""

from datetime import timedelta
from typing import Any

import pytest

from billing.db.access import SETTLER
from billing.interval import Interval
from billing.payments.inbox import Inbox
from billing.payments.metering import Metered, Metering
from billing.payments.order import InvoiceLine, InvoicePush, MeterOrder
from billing.payments.outbox import Outbox, put
from billing.settlement.posting import post
from tests.billing.conftest import NOON
from tests.billing.payments.conftest import Till
from tests.billing.payments.fake_stripe import WEBHOOK_SECRET
from tests.billing.payments.stripe_wire import FAULTS, Fault
from tests.billing.payments.telling import send


def invoice(till: Till, number: str = "KV-7", **changes: Any) -> InvoicePush:
    lines = (InvoiceLine("smollm2, standard, cache hit", 1_029), InvoiceLine("smollm2, output", 400))
    whole = {"lines": lines, "tax_cents": 343, "total_cents": 1_772} | changes
    due_at = till.at + timedelta(days=14)
    return InvoicePush(number, till.house.tenant_id, "USD", due_at=due_at, **whole)


async def push(till: Till, pushed: InvoicePush) -> str:
    async with till.house.database.transaction(SETTLER) as connection:
        return await put(connection, pushed.tenant_id, pushed.number, pushed, till.at)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", [1, 2, 3, 5, 6, 7])
async def test_an_invoice_is_pushed_once_with_its_lines_tax_and_number(
    till: Till, fault: Fault, call: int
) -> None:
    """Whichever call fails: customer, invoice, lines, the total, finalising; so late that keys are gone."""
    await push(till, invoice(till))
    till.fake.wire.faults[call] = fault
    assert (await send(till)).outcome == "open"
    till.fake.wire.kept.clear()
    assert (await send(till, later=timedelta(hours=30))).outcome == "done"
    (made,) = till.fake.of("invoice")
    assert (made["status"], made["total"], made["metadata"]["kvitto_invoice"]) == ("open", 1_772, "KV-7")
    items = [(item["description"], item["amount"]) for item in till.fake.of("invoiceitem")]
    assert sorted(items) == [("Tax", 343), ("smollm2, output", 400), ("smollm2, standard, cache hit", 1_029)]


@pytest.mark.parametrize("ending", ["paid", "void"])
async def test_how_an_invoice_ends_is_told_by_webhook(till: Till, ending: str) -> None:
    order_id = await push(till, invoice(till))
    done = await send(till)
    if ending == "paid":
        till.fake.pay(done.object_id or "")
    else:
        till.fake.void(done.object_id or "")
    await till.deliver_all()
    row = (await till.rows())[done.object_id or ""]
    assert (row.kind, row.status, row.order_id, row.legs) == ("invoice", ending, order_id, 0)


@pytest.mark.parametrize(("comes_to", "status"), [("succeeds", "paid"), ("card_declined", "open")])
async def test_an_invoice_is_charged_where_there_is_a_method(till: Till, comes_to: str, status: str) -> None:
    till.fake.give_card(till.customer_id, comes_to)
    await push(till, invoice(till))
    done = await send(till)
    assert (done.outcome, (await till.rows())[done.object_id or ""].status) == ("done", status)


async def test_a_total_that_differs_there_is_not_finalised(till: Till) -> None:
    await push(till, invoice(till))
    till.fake.wire.endpoints[("POST", "/v1/invoiceitems")] = lambda **said: till.fake.make_item(
        **said | {"amount": str(int(said["amount"]) + 1)}
    )
    refused = await send(till)
    assert refused.outcome == "failed"
    assert "total_differs" in (refused.reason or "")
    assert [made["status"] for made in till.fake.of("invoice")] == ["draft"]


async def meter(till: Till, hour: Any, tokens: int = 1_024) -> str:
    usage = MeterOrder("cache_hit", hour, tokens)
    async with till.house.database.transaction(SETTLER) as connection:
        return await put(connection, till.house.tenant_id, f"{hour:%Y%m%dT%H}-cache_hit", usage, till.at)


@pytest.mark.parametrize("fault", FAULTS)
async def test_usage_that_is_there_already_is_success(till: Till, fault: Fault) -> None:
    """langfuse/langfuse#16292"""
    order_id = await meter(till, NOON - timedelta(hours=2))
    assert await meter(till, NOON - timedelta(hours=2)) == order_id
    till.fake.wire.faults[2] = fault
    await send(till)
    till.fake.wire.kept.clear()
    assert (await send(till, later=timedelta(hours=1))).outcome == "done"
    (event,) = till.fake.used.values()
    assert (event["identifier"], event["payload"]["value"]) == (order_id, "1024")


async def test_usage_older_than_35_days_is_not_sent_and_is_a_finding(till: Till) -> None:
    await meter(till, NOON - timedelta(days=35, hours=1))
    refused = await send(till)
    assert refused.outcome == "failed"
    assert "older than 35 days" in (refused.reason or "")
    assert till.fake.wire.calls == []


async def test_usage_that_may_have_been_counted_before_stripe_forgot_is_not_sent_again(till: Till) -> None:
    await meter(till, NOON - timedelta(hours=2))
    till.fake.wire.faults[2] = "reset_after"
    await send(till)
    refused = await send(till, later=timedelta(hours=24))
    assert (refused.outcome, len(till.fake.used)) == ("failed", 1)


class Booked:
    """What an invoicing package would do: it books each reference once."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str]] = []

    async def paid(self, connection: Any, number: str, amount: Any, reference: str, at: Any) -> None:
        self.calls.append((number, amount // 10**13, reference))


@pytest.mark.parametrize("by_webhook", [True, False])
async def test_an_invoice_that_stripe_has_collected_is_booked_once(till: Till, by_webhook: bool) -> None:
    booked = Booked()
    inbox = Inbox(till.house.database, WEBHOOK_SECRET, booked)
    if not by_webhook:
        till.fake.give_card(till.customer_id)
    await push(till, invoice(till))
    await Outbox(till.house.database, till.stripe, booked).send_due(till.at)
    (done,) = await till.payments.orders(till.house.tenant_id)
    invoice_id = done.object_id or ""
    if by_webhook:
        assert booked.calls == []
        till.fake.pay(invoice_id)
    for event in [*till.fake.events, *till.fake.events[::-1]]:
        await inbox.receive(*till.fake.signed(dict(event, id=till.fake.new_id("evt"))), till.at)
    assert booked.calls == [("KV-7", 1_772, invoice_id)]
    assert (await till.rows())[invoice_id].legs == 1
    assert await till.cents() == 0


async def test_an_invoice_collected_before_anybody_books_is_booked_by_a_retry(till: Till) -> None:
    await push(till, invoice(till))
    invoice_id = (await send(till)).object_id or ""
    till.fake.pay(invoice_id)
    await till.deliver_all()
    booked = Booked()
    again = dict(till.fake.events[-1], id=till.fake.new_id("evt"))
    await Inbox(till.house.database, WEBHOOK_SECRET, booked).receive(*till.fake.signed(again), till.at)
    assert [reference for _, _, reference in booked.calls] == [invoice_id]


async def test_usage_is_ordered_by_tenant_hour_and_bucket_once(till: Till) -> None:
    house, metering = till.house, Metering(till.house.database)
    await post(house.database, [house.event(0), house.event(1), house.event(2, at=NOON + timedelta(hours=1))])
    day = Interval(NOON - timedelta(minutes=1), NOON + timedelta(days=1))
    till.fake.at = NOON + timedelta(hours=2, minutes=59)
    assert (await metering.order(day, till.at)).ordered == 3
    assert await metering.order(day, till.at) == Metered(0, [])
    await send(till)
    used = {name: event["payload"]["value"] for name, event in till.fake.used.items()}
    begin = f"meter-{house.tenant_id}-20261102T12"
    assert used == {
        f"{begin}-cache_hit": "2048", f"{begin}-cache_miss": "352", f"{begin}-output": "600"
    }  # fmt: skip
    till.fake.at += timedelta(minutes=1)
    assert (await metering.order(day, till.at)).ordered == 3
    await post(house.database, [house.event(3)])
    late = await metering.order(day, till.at)
    assert (late.ordered, sorted(late.differing)) == (0, sorted(used))
    assert (await metering.order(Interval(NOON, NOON), till.at)).ordered == 0
