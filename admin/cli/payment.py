"""`kvitto payment`: what Stripe says of tenants' money, and what it is told."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admin.cli.options import ACTOR, INSTANT_HELP, DataDir, Json, directory, instant_of

if TYPE_CHECKING:
    from admin.cli.output import Row
    from admin.settings import Settings
    from billing.ledger.balance import BalanceVersion
    from billing.money import Femto
    from billing.payments.event import Received
    from billing.payments.inbox import Inbox
    from billing.payments.metering import Metering
    from billing.payments.order import Order
    from billing.payments.outbox import Outbox
    from billing.payments.payment import Payment
    from billing.payments.service import Payments
    from billing.tenancy.service import Tenancy
    from billing.tenancy.tenant import Tenant

app = typer.Typer(
    help="Customers, payments, refunds and disputes at Stripe. "
    "It is enabled by KVITTO_STRIPE_SECRET_KEY and KVITTO_STRIPE_WEBHOOK_SECRET before `kvitto up`; "
    "without it, record what is paid with `kvitto credit top-up`.",
    no_args_is_help=True,
)

ROWS_DEFAULT = 50
EVENT_PREFIX = "evt_"

TenantName = Annotated[str, typer.Argument(help="Name or id of the tenant.")]
MaybeTenant = Annotated[str | None, typer.Argument(help="Name or id of a tenant.", show_default=False)]


class Of(StrEnum):
    """What to list."""

    PAYMENTS = "payments"
    ORDERS = "orders"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class _Till:
    """The books of payments; ``outbox`` None: no key of Stripe's is set."""

    settings: "Settings"
    tenancy: "Tenancy"
    payments: "Payments"
    inbox: "Inbox"
    metering: "Metering"
    outbox: "Outbox | None"


@app.command("customers")
def customers(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the tenants that Stripe knows.

    Example: kvitto payment customers --json
    """
    from admin.cli import session
    from admin.cli.output import Column, print_rows

    async def work() -> "list[Row]":
        async with _till(directory(data_dir)) as till:
            names = {tenant.id: tenant.name for tenant in await till.tenancy.tenants()}
            return [
                {
                    "tenant": names[one.tenant_id],
                    "tenant_id": one.tenant_id,
                    "customer_id": one.customer_id,
                    "method": one.method,
                    "deleted": one.deleted is not None,
                    "linked_at": one.linked_at,
                }
                for one in await till.payments.customers()
            ]

    columns = (
        Column("tenant", "tenant", style="bold"),
        Column("customer_id", "customer"),
        Column("method", "default method"),
        Column("deleted", "deleted"),
        Column("linked_at", "since (UTC)"),
    )
    empty = "Stripe knows no tenant yet: `kvitto payment link` names one's customer."
    print_rows(session.run(work()), columns, as_json=as_json, empty=empty)


@app.command("link")
def link(
    tenant: TenantName,
    customer_id: Annotated[str, typer.Argument(metavar="CUSTOMER", help="Stripe's id of it: cus_…")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Say which customer of Stripe's a tenant is. What was paid before is credited now.

    Example: kvitto payment link acme cus_NffrFeUfNV2Hib
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with _till(directory(data_dir)) as till:
            owner = await till.tenancy.tenant(tenant)
            balances = await till.payments.link(owner.id, customer_id, clock.now(), actor=ACTOR)
            await _tell(till.settings, balances)
        return {"tenant": owner.name, "tenant_id": owner.id, "customer_id": customer_id}

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        console().print(f"{row['tenant']} is {customer_id}.", markup=False)


@app.command("list")
def list_(
    tenant: MaybeTenant = None,
    of: Annotated[
        Of, typer.Option(help="What Stripe has, what it is to be told, or what it told us.")
    ] = Of.PAYMENTS,
    rows: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = ROWS_DEFAULT,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List payments, refunds, disputes and invoices at Stripe, newest first; or orders, or events.

    Example: kvitto payment list acme --of events
    """
    from admin.cli import session
    from admin.cli.output import Column, print_rows

    async def work() -> "list[Row]":
        async with _till(directory(data_dir)) as till:
            owner = None if tenant is None else (await till.tenancy.tenant(tenant)).id
            match of:
                case Of.PAYMENTS:
                    known = {one.id: one for one in await till.tenancy.tenants()}
                    found = await till.payments.payments(owner, rows)
                    return [_payment(one, known[one.tenant_id]) for one in found]
                case Of.ORDERS:
                    return [_order(one) for one in await till.payments.orders(owner, rows_max=rows)]
                case Of.EVENTS:
                    events = await till.inbox.events(tenant_id=owner, rows_max=rows)
                    return [_event(one) for one in events]

    columns = {
        Of.PAYMENTS: (
            Column("created_at", "at (UTC)"),
            Column("tenant", "tenant"),
            Column("kind", "kind", style="bold"),
            Column("amount", "amount", right=True),
            Column("currency", ""),
            Column("status", "status"),
            Column("reason", "reason"),
            Column("id", "id"),
        ),
        Of.ORDERS: (
            Column("created_at", "at (UTC)"),
            Column("outcome", "outcome", style="bold"),
            Column("attempts", "attempts", right=True),
            Column("due_at", "next (UTC)"),
            Column("reason", "reason"),
            Column("id", "id"),
        ),
        Of.EVENTS: (
            Column("received_at", "received (UTC)"),
            Column("type", "type"),
            Column("outcome", "outcome", style="bold"),
            Column("reason", "reason"),
            Column("object_id", "object"),
            Column("id", "id"),
        ),
    }
    print_rows(session.run(work()), columns[of], as_json=as_json, empty=f"No {of.value} yet.")


@app.command("show")
def show(
    payment: Annotated[str, typer.Argument(help="Stripe's id: pi_…, re_…, dp_…, in_…")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show a payment with its refunds and disputes, what Stripe told of it, and the order it answers.

    Example: kvitto payment show pi_3MtwBwLkdIwHu7ix28a3tqPa
    """
    from admin.cli import session
    from admin.cli.output import Column, console, print_json, print_pairs, table_of

    async def work() -> dict[str, object]:
        async with _till(directory(data_dir)) as till:
            story = await till.payments.story(payment)
            owner = await till.tenancy.tenant(story.payment.tenant_id)
            return {
                **_payment(story.payment, owner),
                "reversals": [_payment(one, owner) for one in story.reversals],
                "events": [_event(one) for one in story.events],
                "order": None if story.order is None else _order(story.order),
            }

    row = session.run(work())
    if as_json:
        print_json(row)
        return
    nested = ("reversals", "events", "order")
    print_pairs([(name.replace("_", " "), value) for name, value in row.items() if name not in nested])
    for name, shown in (
        ("reversals", ("created_at", "kind", "amount", "status", "reason", "id")),
        ("events", ("received_at", "type", "outcome", "reason", "id")),
    ):
        found = row[name]
        if isinstance(found, list) and found:
            console().print()
            console().print(table_of(found, [Column(key, key.replace("_", " ")) for key in shown]))


@app.command("retry")
def retry(
    what: Annotated[str, typer.Argument(metavar="ID", help="An event (evt_…), or an order.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Apply an event again that was ignored or waits, or tell Stripe an order now.

    Example: kvitto payment retry evt_1MtwBwLkdIwHu7ixTh3q8Q2k
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json

    async def work() -> dict[str, object]:
        async with _till(directory(data_dir)) as till:
            if what.startswith(EVENT_PREFIX):
                receipt = await till.inbox.retry(what, clock.now())
                await _tell(till.settings, receipt.balances)
                (event,) = await till.inbox.events(event_id=what)
                return {"id": what, "outcome": event.outcome, "reason": event.reason}
            await _tell(till.settings, await _outbox(till).send(what, clock.now(), now=True))
            order = await till.payments.order(what)
            return {"id": what, "outcome": order.outcome, "reason": order.reason}

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        because = "" if row["reason"] is None else f": {row['reason']}"
        console().print(f"{what} is {row['outcome']}{because}.", markup=False)


@app.command("refund")
def refund(
    payment: Annotated[str, typer.Argument(help="Stripe's id of the payment: pi_…")],
    reason: Annotated[str, typer.Option(help="Why, for the books.")],
    amount: Annotated[
        str | None, typer.Argument(help="In the tenant's currency: 25 or 0.10. [dim]\\[default: all][/dim]")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", metavar="TEXT", help="The same key again pays nothing.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Pay a payment back, or a part of it: in the ledger at once, and at Stripe as soon as it answers.

    Example: kvitto payment refund pi_3MtwBwLkdIwHu7ix28a3tqPa 40 --reason 'asked for'
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.money import decimal_of, femto_of
    from billing.payments.service import RefundAsked

    femto: Femto | None = None if amount is None else femto_of(amount)
    asked = RefundAsked(payment, femto, reason, ACTOR, idempotency_key or secrets.token_hex(8))

    async def work() -> dict[str, object]:
        async with _till(directory(data_dir)) as till:
            _outbox(till)
            refunded = await till.payments.refund(asked, clock.now())
            await _tell(till.settings, [refunded.balance])
            owner = await till.tenancy.tenant(refunded.balance.tenant_id)
        return {
            "tenant": owner.name,
            "payment": payment,
            "amount": decimal_of(refunded.amount),
            "currency": owner.currency,
            "balance": decimal_of(refunded.balance.balance),
            "order_id": refunded.order_id,
        }

    row = session.run(work())
    if as_json:
        print_json(row)
    else:
        text = "{tenant} is paid back {amount} {currency}; `kvitto payment list --of orders` shows when."
        console().print(text.format(**row), markup=False)


@app.command("meter")
def meter(
    since: Annotated[str, typer.Option(metavar="INSTANT", help=f"First hour: {INSTANT_HELP}.")] = "48h",
    until: Annotated[str, typer.Option(metavar="INSTANT", help="End, not included.")] = "now",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Have usage added to Stripe's meters, by tenant, hour and bucket, each sum once.

    Hours are sent an hour after their end, to meters named kvitto_tokens_cache_hit and so on. Nothing older
    than 35 days is taken there: it stays among the failed orders.

    Example: kvitto payment meter --since 7d
    """
    from admin import clock
    from admin.cli import session
    from admin.cli.output import console, print_json
    from billing.interval import Interval
    from billing.payments.metering import Metered

    now = clock.now()
    interval = Interval(instant_of(since, now), instant_of(until, now))

    async def work() -> Metered:
        async with _till(directory(data_dir)) as till:
            _outbox(till)
            return await till.metering.order(interval, now)

    metered = session.run(work())
    if as_json:
        print_json({"ordered": metered.ordered, "differing": list(metered.differing)})
        return
    console().print(f"{metered.ordered} sums are to be sent.", markup=False)
    for order_id in metered.differing:
        console().print(f"{order_id} was sent, and has another sum since.", markup=False)


@asynccontextmanager
async def _till(data_dir: Path) -> AsyncIterator[_Till]:
    """Open the books of payments for one command; connections are closed afterwards."""
    from admin import clock
    from admin.stack.supervisor import connect
    from billing.db.transaction import Database
    from billing.payments.inbox import Inbox
    from billing.payments.invoices import StripeInvoices
    from billing.payments.metering import Metering
    from billing.payments.outbox import Outbox
    from billing.payments.service import Payments
    from billing.tenancy.service import Tenancy

    settings = connect(data_dir)
    async with AsyncExitStack() as stack:
        database = Database(settings.database_url, pool_size=2)
        stack.push_async_callback(database.close)
        outbox = None
        if settings.stripe.secret_key is not None:
            from billing.payments.stripe import Stripe, StripeAccess

            stripe = Stripe(StripeAccess(settings.stripe.secret_key, settings.stripe.api_url), clock.now)
            stack.push_async_callback(stripe.close)
            outbox = Outbox(database, stripe, StripeInvoices())
        tenancy = Tenancy(database, settings.key_pepper)
        books = Payments(database), Inbox(database, invoices=StripeInvoices()), Metering(database)
        yield _Till(settings, tenancy, *books, outbox)


def _outbox(till: _Till) -> "Outbox":
    """The way to Stripe; raises PaymentsMissing."""
    from admin.settings import STRIPE_SECRET_KEY
    from billing.errors import PaymentsMissing

    if till.outbox is None:
        raise PaymentsMissing(STRIPE_SECRET_KEY)
    return till.outbox


async def _tell(settings: "Settings", balances: "list[BalanceVersion]") -> None:
    """Show gateways what can be spent. If Valkey is away, the next movement or admission does."""
    from contextlib import suppress

    from admin.cli import session
    from gateway.admission.admit import Admission
    from gateway.refusal import ValkeyUnavailable

    async with session.valkey(settings) as valkey:
        with suppress(ValkeyUnavailable):
            for version in balances:
                await Admission(valkey).project(version)


def _payment(one: "Payment", owner: "Tenant") -> "Row":
    from billing.money import decimal_of

    return {
        "id": one.id,
        "tenant": owner.name,
        "tenant_id": one.tenant_id,
        "kind": one.kind,
        "amount": decimal_of(one.amount),
        "currency": owner.currency,
        "status": one.status,
        "reason": one.reason,
        "of": one.parent,
        "moved": one.legs,
        "order_id": one.order_id,
        "created_at": one.created_at,
        "said_at": one.fact_at,
        "said_by": one.fact,
    }


def _order(one: "Order") -> "Row":
    return {
        "id": one.id,
        "tenant_id": one.tenant_id,
        "kind": one.errand.kind,
        "outcome": one.outcome,
        "reason": one.reason,
        "object_id": one.object_id,
        "attempts": one.attempts,
        "created_at": one.created_at,
        "due_at": one.due_at,
    }


def _event(one: "Received") -> "Row":
    return {
        "id": one.id,
        "tenant_id": one.tenant_id,
        "type": one.type,
        "object_id": one.object_id,
        "outcome": one.outcome,
        "reason": one.reason,
        "created_at": one.created_at,
        "received_at": one.received_at,
    }
