"""A month's books agree; whatever is removed or altered by hand is named (BerriAI/litellm#13280)."""

import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from billing.db.access import OWNER, SETTLER
from billing.db.transaction import Database
from billing.invoicing.invoice import Payment as Paid
from billing.invoicing.service import Invoicing
from billing.invoicing.settling import Deliberate, Settling
from billing.invoicing.top_ups import PaidIn, top_up_document
from billing.payments.applying import apply
from billing.payments.fact import Kind, PaymentFact
from billing.payments.outbox import link
from billing.pricing.document import row_sha256
from billing.receipts.log.service import ReceiptLog
from billing.reconcile import service as reconcile
from billing.reconcile.finding import Finding, correction
from billing.reconcile.service import EVER, Reconciliation
from engine.proof.ring import RingSigner
from tests.billing.conftest import AT_ONCE
from tests.billing.invoicing.month import APRIL_OVER, MARCH_OVER, Month
from tests.conftest import PostgresServer, run_apart

LATER = APRIL_OVER + timedelta(days=3)
AFTER_ALL = datetime.max.replace(tzinfo=LATER.tzinfo)
DEARER = "UPDATE usage_event SET charge = charge + 1 WHERE request_id = :one RETURNING *"
LONGER = "UPDATE usage_event SET output = output + 1 WHERE request_id = :one RETURNING *"

Spoil = Callable[..., Awaitable[Any]]
Look = Callable[..., Awaitable[list[Finding]]]


@pytest.fixture(scope="module")
def made(database_url: str) -> Month:
    """Three tenants' March and April closed, paid and credited; one topped up by Stripe and was refunded."""
    month: Month = run_apart(make(database_url))
    return month


async def make(database_url: str) -> Month:
    database = Database(database_url)
    month = await Month.furnish(database)
    *traffic, late = month.traffic(40)
    signer = RingSigner(month.ring, month.deployment.private)
    log = ReceiptLog(database, signer, AT_ONCE)
    invoicing = Invoicing(database, row_sha256, log, signer, lag=timedelta(0))
    await month.settle(traffic)
    for at in (MARCH_OVER, APRIL_OVER):
        for member in month.members.values():
            await invoicing.close(member.tenant_id, at)
        if at == MARCH_OVER:
            await month.settle_late(late)
    settling = Settling(database, signer)
    for name in ("north", "east"):
        march = (await invoicing.invoices(month.members[name].tenant_id))[1]
        if name == "north":
            await settling.credit(march.number, {0: 1}, Deliberate("kindness", "test", LATER))
            march = await invoicing.invoice(march.number)
        await settling.pay(Paid(march.number, march.open_cents, "transfer", f"bank-{name}", LATER, "test"))
    april = (await invoicing.invoices(month.members["north"].tenant_id))[2]
    await settling.void(april.number, Deliberate("kindness", "test", LATER))
    april = (await invoicing.invoices(month.members["east"].tenant_id))[2]
    await settling.give_up(april.number, Deliberate("bankrupt", "test", LATER))
    west = month.members["west"].tenant_id
    async with database.transaction(SETTLER) as connection:
        paid_in = await top_up_document(connection, signer, PaidIn(west, 1_000, "pi_1", LATER, "test"))
    await settling.credit(paid_in.number, {0: 300}, Deliberate("paid back", "test", LATER))
    async with database.transaction(SETTLER) as connection:
        await link(connection, west, "cus_west", LATER, actor="test")
    for kind, id_, status, parent in (
        ("payment", "pi_1", "succeeded", None),
        ("refund", "re_1", "succeeded", "pi_1"),
        ("dispute", "du_1", "won", "pi_1"),
    ):
        async with database.transaction(SETTLER) as connection:
            await apply(connection, fact(kind, id_, status, parent), LATER)
    await database.close()
    return month


def fact(kind: Any, id_: str, status: str, parent: str | None) -> PaymentFact:
    named: Kind = kind
    metadata = {"kvitto_purpose": "top_up"}
    return PaymentFact(
        id_, named, 1_000, "USD", status, LATER, "cus_west", parent, None, metadata, LATER, f"made:{id_}"
    )


@pytest.fixture
def copied_url(made: Month, postgres_server: PostgresServer, database_url: str) -> Iterator[str]:
    """A copy of the made month, to be spoiled."""
    name = f"kvitto_{secrets.token_hex(6)}"
    of = re.search(r"/(kvitto_[0-9a-f]+)", database_url)
    assert of is not None
    postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE {of[1]}")
    yield postgres_server.url(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def copied(copied_url: str) -> AsyncIterator[Database]:
    database = Database(copied_url)
    yield database
    await database.close()


@pytest.fixture
def spoil(copied: Database) -> Spoil:
    """Do something by hand, as a superuser whom neither triggers nor foreign keys stop; what it returns."""

    async def run(statement: str, **values: Any) -> Any:
        async with copied.transaction(OWNER) as connection:
            await connection.execute(text("SET LOCAL session_replication_role = replica"))
            done = await connection.execute(text(statement), values)
            return done.first() if done.returns_rows else None

    return run


@pytest.fixture
def look(copied: Database, made: Month) -> Look:
    async def run(since: datetime = EVER, until: datetime = AFTER_ALL) -> list[Finding]:
        return [each async for each in Reconciliation(copied, made.ring).run(since, until)]

    return run


@pytest.fixture
async def one(spoil: Spoil) -> UUID:
    """A request that was charged."""
    found = await spoil("SELECT * FROM usage_event WHERE charge > 0 ORDER BY request_id LIMIT 1 OFFSET 5")
    request_id: UUID = found.request_id
    return request_id


def named(found: list[Finding], check: str) -> list[str]:
    return [each.object_id for each in found if each.check == check]


async def test_a_whole_months_books_agree(look: Look) -> None:
    assert await look() == []


async def test_a_removed_event_is_named_with_its_repair(one: UUID, look: Look, spoil: Spoil) -> None:
    gone = await spoil("DELETE FROM usage_event WHERE request_id = :one RETURNING *", one=one)
    found, request_id = await look(), str(gone.request_id)
    assert named(found, reconcile.EVENTS_LEDGER) == [request_id]
    assert named(found, reconcile.EVENTS_RECEIPTS) == [request_id]
    assert named(found, reconcile.LEDGER_BALANCES) == [request_id]
    (event,) = (each for each in found if each.check == reconcile.EVENTS_LEDGER)
    assert event.repair == correction(gone.tenant_id, -int(gone.charge), request_id)
    assert event.repair is not None
    assert f"credit correct {gone.tenant_id} " in event.repair
    assert "--favours tenant" in event.repair
    rest = {reconcile.INVOICES_EVENTS, reconcile.LOG, reconcile.EVENTS_ATTESTATIONS}
    assert {each.check for each in found if each.object_id != request_id} <= rest
    covering = named(found, reconcile.INVOICES_EVENTS)
    assert len(set(covering)) == 1, "the invoice that covers it"


async def test_a_removed_posting_is_named(one: UUID, look: Look, spoil: Spoil) -> None:
    gone = await spoil(
        "DELETE FROM ledger_entry WHERE transaction_id = :one AND account = 'revenue' RETURNING *", one=one
    )
    found, id_ = await look(), str(gone.transaction_id)
    assert {each.object_id for each in found} == {id_}
    assert {each.check for each in found} == {reconcile.EVENTS_LEDGER, reconcile.LEDGER_BALANCES}
    assert [each.repair for each in found if each.repair] == [
        correction(gone.tenant_id, int(gone.amount), id_)
    ]


async def test_a_removed_receipt_is_named(look: Look, spoil: Spoil) -> None:
    gone = await spoil("DELETE FROM receipt_leaf WHERE leaf_index = 7 RETURNING *")
    found = await look()
    assert named(found, reconcile.EVENTS_RECEIPTS) == [str(gone.request_id)]
    said = [each.differs for each in found if each.check == reconcile.LOG]
    assert said[:2] == [
        f"request {gone.request_id} was recorded before the last cut and has no leaf",
        "leaf 7 is missing",
    ]
    assert {each.check for each in found} == {reconcile.EVENTS_RECEIPTS, reconcile.LOG}


async def test_an_altered_charge_is_named_wherever_it_is_said(one: UUID, look: Look, spoil: Spoil) -> None:
    altered = await spoil(
        "UPDATE usage_event SET charge = charge + 1 WHERE request_id = :one RETURNING *", one=one
    )
    found, id_ = await look(), str(altered.request_id)
    (event,) = (each for each in found if each.check == reconcile.EVENTS_LEDGER)
    assert (event.object_id, event.repair) == (id_, correction(altered.tenant_id, 1, id_))
    (receipt,) = (each for each in found if each.check == reconcile.EVENTS_RECEIPTS)
    assert receipt.object_id == id_
    assert receipt.differs.endswith("differs from its event in charge")
    (invoice,) = (each for each in found if each.check == reconcile.INVOICES_EVENTS)
    assert "settled were" in invoice.differs
    assert named(found, reconcile.LEDGER_BALANCES) == [id_]


async def test_an_altered_bucket_is_named(one: UUID, look: Look, spoil: Spoil) -> None:
    altered = await spoil(
        "UPDATE usage_event SET output = output + 1 WHERE request_id = :one RETURNING *", one=one
    )
    (receipt,) = (each for each in await look() if each.check == reconcile.EVENTS_RECEIPTS)
    assert receipt.object_id == str(altered.request_id)
    assert receipt.differs.endswith("differs from its event in output")


async def test_an_altered_balance_is_named(look: Look, spoil: Spoil, made: Month) -> None:
    west = made.members["west"].tenant_id
    await spoil("UPDATE balance SET granted = granted + 1 WHERE tenant_id = :west", west=west)
    found = await look()
    assert {(each.check, each.object_id) for each in found} == {(reconcile.LEDGER_BALANCES, west)}
    assert found[0].differs == f"granted balance of {west} is 1, its entries sum to 0"


async def test_an_altered_row_of_an_invoice_is_named(look: Look, spoil: Spoil) -> None:
    await spoil(
        "UPDATE invoice_usage SET tokens = tokens + 1, amount = (tokens + 1) * rate"
        " WHERE number = 'NORTH-2' AND position = 3"
    )
    found = await look()
    assert {each.check for each in found} == {reconcile.INVOICES_EVENTS}
    assert [each.object_id for each in found] == ["NORTH-2 usage 3", "NORTH-2"]
    assert "it has" in found[1].differs


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE invoice SET carried_out = carried_out + 1", "carried out"),
        (
            "UPDATE invoice SET total_cents = 1 + total_cents, due_cents = 1 + due_cents",
            "another total_cents",
        ),
        ("UPDATE invoice SET document = replace(document, 'NORTH-2', 'NORTH-7')", "its signed text"),
        ("UPDATE invoice SET transaction_id = NULL", "names no transaction"),
        ("UPDATE invoice SET position = 9", "after number"),
        ("UPDATE invoice_payment SET cents = cents + 1", "paid were"),
        ("DELETE FROM ledger_entry USING invoice", "it says"),
    ],
)
async def test_an_altered_document_is_named(look: Look, spoil: Spoil, statement: str, said: str) -> None:
    booked = " AND ledger_entry.transaction_id = invoice.transaction_id" if "USING" in statement else ""
    await spoil(f"{statement} WHERE number = 'NORTH-2'{booked}")
    found = await look()
    assert any(each.object_id.startswith("NORTH-2") and said in each.differs for each in found)


async def test_an_altered_payment_is_named(look: Look, spoil: Spoil) -> None:
    await spoil("UPDATE payment SET amount = amount + 1 WHERE id = 're_1'")
    (found,) = await look()
    assert (found.check, found.object_id) == (reconcile.STRIPE_LEDGER, "re_1")


async def test_a_removed_payment_is_named_by_what_it_moved(look: Look, spoil: Spoil) -> None:
    await spoil("DELETE FROM payment WHERE id = 're_1'")
    (found,) = await look()
    assert (found.check, found.object_id) == (reconcile.STRIPE_LEDGER, "re_1")


async def test_what_was_captured_and_not_credited_is_named(look: Look, spoil: Spoil) -> None:
    """A capture whose credit was lost is found, whichever side lost it (BerriAI/litellm#13280)."""
    await spoil("UPDATE payment SET legs = 0 WHERE id = 'pi_1'")
    found = await look()
    assert {each.object_id for each in found} == {"pi_1"}
    assert {each.differs.partition(",")[0] for each in found} >= {"it is succeeded"}


async def test_an_order_that_failed_is_named(look: Look, spoil: Spoil, made: Month) -> None:
    await spoil(
        "INSERT INTO payment_outbox (id, tenant_id, kind, body, created_at, outcome, reason)"
        " VALUES ('top_up-x', :tenant, 'top_up', '{}', :at, 'failed', 'declined')",
        tenant=made.members["west"].tenant_id,
        at=LATER,
    )
    (found,) = await look()
    assert (found.object_id, found.differs) == (
        "top_up-x",
        "Stripe was to be told of a top_up, and was not: declined",
    )


async def test_only_what_was_recorded_in_the_window_is_looked_at(one: UUID, look: Look, spoil: Spoil) -> None:
    altered = await spoil(
        "UPDATE usage_event SET charge = charge + 1 WHERE request_id = :one RETURNING *", one=one
    )
    at = altered.recorded_at
    behind = await look(at + timedelta(microseconds=1))
    assert named(behind, reconcile.EVENTS_LEDGER) == []
    assert named(await look(at, at), reconcile.EVENTS_LEDGER) == []
    within = await look(at, at + timedelta(microseconds=1))
    assert named(within, reconcile.EVENTS_LEDGER) == [str(altered.request_id)]


async def test_a_served_request_that_the_books_forgot_is_named(look: Look, spoil: Spoil) -> None:
    gone = await spoil(
        "DELETE FROM usage_event WHERE request_id = (SELECT request_id FROM attestation"
        " WHERE kind = 'decode' ORDER BY request_id LIMIT 1) RETURNING *"
    )
    assert named(await look(), reconcile.EVENTS_ATTESTATIONS) == [str(gone.request_id)]


@pytest.mark.parametrize(
    ("legs", "differs"),
    [(1, "it paid 300, our document was paid 0 of it"), (0, "it is paid, moved 0 times of 1")],
)
async def test_an_invoice_paid_at_stripe_and_not_here_is_named(
    look: Look, spoil: Spoil, made: Month, legs: int, differs: str
) -> None:
    await spoil(
        "INSERT INTO payment (id, tenant_id, kind, amount, status, order_id, created_at, fact_at, fact, legs)"
        " VALUES ('in_1', :tenant, 'invoice', 300, 'paid', 'invoice-x', :at, :at, 'made', :legs)",
        tenant=made.members["north"].tenant_id,
        at=LATER,
        legs=legs,
    )
    assert await look() == [Finding(reconcile.STRIPE_LEDGER, "in_1", differs)]
