"""Payments from the command line: what is known, what is told, and what to set when nothing is."""

import asyncio
import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from admin import clock
from admin.settings import Settings, StripeSettings
from admin.stack.state import Layout
from billing.db.transaction import Database
from billing.payments.inbox import Inbox
from tests.billing.payments.fake_stripe import SECRET_KEY, WEBHOOK_SECRET, FakeStripe


@pytest.fixture
def fake() -> Iterator[FakeStripe]:
    """A Stripe of its own thread: commands have loops of their own."""
    fake, ready, loop = FakeStripe(clock.now()), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with fake.wire.served():
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(10)
    yield fake
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture
def configured(cli_settings: Settings, fake: FakeStripe) -> Settings:
    """A stack whose operator has set Stripe's secrets."""
    settings = replace(cli_settings, stripe=StripeSettings(SECRET_KEY, WEBHOOK_SECRET, fake.wire.url))
    settings.write(Layout(settings.data_dir).settings)
    return settings


@pytest.fixture
def name(kvitto: Any) -> str:
    """A tenant of this test's own."""
    name = f"acme-{secrets.token_hex(4)}"
    kvitto("tenant", "create", name)
    return name


def deliver(settings: Settings, fake: FakeStripe, *events: dict[str, Any]) -> None:
    async def work() -> None:
        database = Database(settings.database_url, pool_size=1)
        try:
            for event in events:
                await Inbox(database, WEBHOOK_SECRET).receive(*fake.signed(event), fake.at)
        finally:
            await database.close()

    asyncio.run(work())


@pytest.fixture
def paid(kvitto: Any, name: str, configured: Settings, fake: FakeStripe) -> str:
    """A payment of 100 that Stripe has told of; its id."""
    customer_id = fake.make_customer()["id"]
    kvitto("payment", "link", name, customer_id)
    said = {"customer": customer_id, "amount": 10_000, "currency": "usd", "confirm": "true"}
    made = fake.make_payment(
        **said, payment_method=fake.give_card(customer_id), metadata={"kvitto_purpose": "top_up"}
    )
    deliver(configured, fake, *fake.events)
    return str(made["id"])


def test_a_payment_is_shown_with_what_was_told_of_it(kvitto: Any, name: str, paid: str) -> None:
    (row,) = kvitto("payment", "list", name, "--json").told
    assert (row["id"], row["amount"], row["status"], row["moved"]) == (paid, "100", "succeeded", 1)
    shown = kvitto("payment", "show", paid, "--json").told
    told = {event["type"] for event in shown["events"]}
    assert told == {"payment_intent.created", "payment_intent.succeeded"}
    assert "payment_intent.succeeded" in kvitto("payment", "show", paid).out
    assert paid in kvitto("payment", "list").out
    customers = {one["tenant"]: one for one in kvitto("payment", "customers", "--json").told}
    assert customers[name]["method"].startswith("pm_")
    assert name in kvitto("payment", "customers").out


def test_a_refund_is_in_the_ledger_at_once_and_at_stripe_when_told(
    kvitto: Any, name: str, paid: str, fake: FakeStripe
) -> None:
    command = ("payment", "refund", paid, "40", "--reason", "asked for", "--idempotency-key", "k", "--json")
    told = kvitto(*command).told
    assert (told["amount"], told["balance"]) == ("40", "60")
    assert kvitto(*command).told["balance"] == "60"
    assert fake.of("refund") == []
    (order,) = kvitto("payment", "list", name, "--of", "orders", "--json").told
    assert (order["id"], order["outcome"]) == (told["order_id"], "open")
    assert kvitto("payment", "retry", order["id"], "--json").told["outcome"] == "done"
    assert [refund["amount"] for refund in fake.of("refund")] == [4_000]
    shown = kvitto("payment", "show", paid, "--json").told
    assert [one["amount"] for one in shown["reversals"]] == ["40"]
    ran = kvitto("payment", "refund", paid, "61", "--reason", "x")
    assert (ran.status, ran.err) == (1, "kvitto: 61 is more than the rest of the payment, which is 60\n")
    assert "is paid back 60 USD" in kvitto("payment", "refund", paid, "--reason", "all").out


def test_an_event_of_nobody_is_listed_with_its_reason_and_applied_once_it_is_somebodys(
    kvitto: Any, name: str, configured: Settings, fake: FakeStripe
) -> None:
    customer_id = fake.make_customer()["id"]
    said = {"customer": customer_id, "amount": 500, "currency": "usd", "confirm": "true"}
    fake.make_payment(**said, payment_method=fake.give_card(customer_id), metadata={})
    event = fake.events[-1]
    deliver(configured, fake, event)
    events = {one["id"]: one for one in kvitto("payment", "list", "--of", "events", "--json").told}
    assert events[event["id"]]["outcome"] == "ignored"
    assert "no top-up" in kvitto("payment", "retry", event["id"]).out
    assert kvitto("payment", "link", name, customer_id).out == f"{name} is {customer_id}.\n"
    ran = kvitto("payment", "link", name, "cus_other")
    assert ran.status == 1
    assert "linked_already" in ran.err


@pytest.mark.parametrize("words", [("refund", "pi_1", "--reason", "x"), ("retry", "top_up-x")])
def test_without_stripe_commands_say_what_to_set(kvitto: Any, name: str, words: tuple[str, ...]) -> None:
    ran = kvitto("payment", *words)
    assert ran.status == 1
    assert "KVITTO_STRIPE_SECRET_KEY" in ran.err
    assert kvitto("payment", "list").status == 0
    assert kvitto("credit", "top-up", name, "5").status == 0


@pytest.mark.parametrize("words", [("show", "pi_1"), ("retry", "evt_1"), ("retry", "top_up-x")])
def test_what_is_unknown_is_one_line(kvitto: Any, configured: Settings, words: tuple[str, ...]) -> None:
    ran = kvitto("payment", *words)
    assert ran.status == 1
    says = f"no payment, customer or event '{words[1]}': `kvitto payment list` shows all of them"
    assert ran.err == f"kvitto: {says}\n"
