"""Statements on payments, on what Stripe said and on what it is to be told."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Row, bindparam, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.tables import payment, payment_customer, payment_inbox, payment_outbox, tenant
from billing.payments.customer import Customer
from billing.payments.event import Received
from billing.payments.fact import CustomerFact
from billing.payments.order import Errand, Order
from billing.payments.payment import Payment

_LOCK: Final = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")


_CUSTOMER: Final = (
    payment_customer.c.tenant_id,
    payment_customer.c.customer_id,
    tenant.c.currency,
    payment_customer.c.linked_at,
    payment_customer.c.method,
    payment_customer.c.deleted,
)
_RECEIVED: Final = [payment_inbox.c[name] for name in Received.__slots__]

# Written once: every webhook asks these.
_EVENT: Final = insert(payment_inbox).on_conflict_do_nothing().returning(payment_inbox.c.id)
_OUTCOME: Final = update(payment_inbox).where(payment_inbox.c.id == bindparam("event_id"))
_OF_CUSTOMER: Final = select(*_CUSTOMER).join(tenant)
_BY_CUSTOMER: Final = _OF_CUSTOMER.where(payment_customer.c.customer_id == bindparam("customer_id"))
_BY_TENANT: Final = _OF_CUSTOMER.where(payment_customer.c.tenant_id == bindparam("tenant_id"))
_PAYMENT: Final = select(payment).where(payment.c.id == bindparam("payment_id"))
_CHILDREN: Final = (
    select(payment)
    .where(payment.c.parent == bindparam("payment_id"))
    .order_by(payment.c.created_at, payment.c.id)
)
_learned: Final = insert(payment)
_LEARNED: Final = _learned.on_conflict_do_update(
    index_elements=["id"], set_={name: _learned.excluded[name] for name in Payment.__slots__}
)
_WAITING: Final = (
    select(payment_inbox.c.id, payment_inbox.c.body)
    .where(payment_inbox.c.waits_for == bindparam("object_id"))
    .order_by(payment_inbox.c.created_at, payment_inbox.c.id)
)


async def lock(connection: AsyncConnection, object_id: str) -> None:
    """Until the transaction ends nobody else hears anything of this object, though it may have no row yet."""
    await connection.execute(_LOCK, {"name": f"stripe:{object_id}"})


async def select_customer(connection: AsyncConnection, **by: str) -> Customer | None:
    """By ``tenant_id`` or ``customer_id``."""
    statement = _BY_TENANT if "tenant_id" in by else _BY_CUSTOMER
    row = (await connection.execute(statement, by)).one_or_none()
    return None if row is None else Customer(*row)


async def select_customers(connection: AsyncConnection) -> list[Customer]:
    """All, in the order in which they were linked."""
    statement = select(*_CUSTOMER).join(tenant).order_by(payment_customer.c.linked_at)
    return [Customer(*row) for row in await connection.execute(statement)]


async def insert_customer(
    connection: AsyncConnection, tenant_id: str, customer_id: str, at: datetime
) -> bool:
    """Whether it was made: not where the tenant has one, or another tenant this one."""
    statement = insert(payment_customer).values(tenant_id=tenant_id, customer_id=customer_id, linked_at=at)
    made = await connection.execute(
        statement.on_conflict_do_nothing().returning(payment_customer.c.tenant_id)
    )
    return made.one_or_none() is not None


async def update_customer(connection: AsyncConnection, fact: CustomerFact) -> None:
    """What is newer; a deleted customer stays deleted."""
    known = payment_customer.c
    newer = (known.fact_at.is_(None)) | (func.row(known.fact_at, known.fact) < func.row(fact.at, fact.name))
    statement = update(payment_customer).where(known.customer_id == fact.id, known.deleted.is_(None), newer)
    values = {"method": fact.method, "fact_at": fact.at, "fact": fact.name}
    if fact.deleted:
        values["deleted"] = fact.name
        statement = update(payment_customer).where(known.customer_id == fact.id, known.deleted.is_(None))
    await connection.execute(statement.values(values))


async def select_payment(connection: AsyncConnection, payment_id: str) -> Payment | None:
    """One of Stripe's objects that we know."""
    row = (await connection.execute(_PAYMENT, {"payment_id": payment_id})).mappings().one_or_none()
    return None if row is None else Payment(**row)


async def select_children(connection: AsyncConnection, payment_id: str) -> list[Payment]:
    """Refunds and disputes of a payment, oldest first."""
    return [
        Payment(**row) for row in (await connection.execute(_CHILDREN, {"payment_id": payment_id})).mappings()
    ]


async def select_payments(connection: AsyncConnection, tenant_id: str | None, rows_max: int) -> list[Payment]:
    """The newest, of one tenant or all."""
    statement = select(payment).order_by(payment.c.created_at.desc(), payment.c.id.desc()).limit(rows_max)
    if tenant_id is not None:
        statement = statement.where(payment.c.tenant_id == tenant_id)
    return [Payment(**row) for row in (await connection.execute(statement)).mappings()]


async def upsert_payment(connection: AsyncConnection, known: Payment) -> None:
    """As it is now; it must be locked."""
    await connection.execute(_LEARNED, {name: getattr(known, name) for name in Payment.__slots__})


async def insert_event(connection: AsyncConnection, received: Received, body: bytes) -> bool:
    """Whether it is new; another transaction that is storing it is waited for."""
    made = await connection.execute(_EVENT, {**asdict(received), "body": body})
    return made.one_or_none() is not None


async def update_event(connection: AsyncConnection, event_id: str, values: Mapping[str, Any]) -> None:
    """Outcome, reason and whose it is."""
    await connection.execute(_OUTCOME, {**values, "event_id": event_id})


async def select_event(connection: AsyncConnection, event_id: str) -> tuple[Received, bytes] | None:
    """An event with its body, locked."""
    statement = select(*_RECEIVED, payment_inbox.c.body).where(payment_inbox.c.id == event_id)
    row = (await connection.execute(statement.with_for_update())).one_or_none()
    return None if row is None else (Received(*row[:-1]), row[-1])


async def select_events(
    connection: AsyncConnection, wanted: Mapping[str, str | None], rows_max: int
) -> list[Received]:
    """The newest events whose columns are as wanted; None: as they like."""
    statement = select(*_RECEIVED).order_by(payment_inbox.c.received_at.desc(), payment_inbox.c.id)
    for name, value in wanted.items():
        if value is not None:
            statement = statement.where(payment_inbox.c[name] == value)
    return [Received(*row) for row in await connection.execute(statement.limit(rows_max))]


async def select_waiting(connection: AsyncConnection, object_id: str) -> list[tuple[str, bytes]]:
    """Events that wait for an object to become known, with their bodies, oldest first."""
    found = await connection.execute(_WAITING, {"object_id": object_id})
    return [(event_id, body) for event_id, body in found]


async def insert_order(connection: AsyncConnection, order: Order) -> bool:
    """Whether it is new: the same order is kept once."""
    values = {
        "id": order.id,
        "tenant_id": order.tenant_id,
        "kind": order.errand.kind,
        "body": msgspec.json.encode(order.errand).decode(),
        "created_at": order.created_at,
        "due_at": order.due_at,
    }
    statement = insert(payment_outbox).values(values).on_conflict_do_nothing()
    return (await connection.execute(statement.returning(payment_outbox.c.id))).one_or_none() is not None


async def select_order(connection: AsyncConnection, order_id: str) -> Order | None:
    """An order, locked."""
    statement = select(payment_outbox).where(payment_outbox.c.id == order_id).with_for_update()
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _order(row)


async def select_due(connection: AsyncConnection, at: datetime, orders_max: int) -> Sequence[str]:
    """Orders whose next attempt is due, the longest overdue first."""
    statement = select(payment_outbox.c.id).where(payment_outbox.c.due_at <= at)
    return (
        (await connection.execute(statement.order_by(payment_outbox.c.due_at).limit(orders_max)))
        .scalars()
        .all()
    )


async def select_orders(
    connection: AsyncConnection, tenant_id: str | None, rows_max: int, outcome: str | None = None
) -> list[Order]:
    """The newest orders, of one tenant or all."""
    statement = select(payment_outbox).order_by(payment_outbox.c.created_at.desc(), payment_outbox.c.id)
    if tenant_id is not None:
        statement = statement.where(payment_outbox.c.tenant_id == tenant_id)
    if outcome is not None:
        statement = statement.where(payment_outbox.c.outcome == outcome)
    return [_order(row) for row in await connection.execute(statement.limit(rows_max))]


async def update_order(connection: AsyncConnection, order: Order) -> None:
    """What became of it; it must be locked."""
    names = ("spent", "attempts", "first_sent_at", "due_at", "outcome", "object_id", "reason")
    statement = update(payment_outbox).where(payment_outbox.c.id == order.id)
    await connection.execute(statement.values({name: getattr(order, name) for name in names}))


async def select_open_refunds(connection: AsyncConnection, payment_id: str) -> list[Order]:
    """Refunds of a payment that Stripe has not been told of yet, as far as we know."""
    statement = select(payment_outbox).where(
        payment_outbox.c.kind == "refund",
        payment_outbox.c.object_id.is_(None),
        payment_outbox.c.outcome == "open",
        text("body::jsonb ->> 'payment' = :payment").bindparams(payment=payment_id),
    )
    return [_order(row) for row in await connection.execute(statement)]


def _order(row: Row[Any]) -> Order:
    return Order(
        id=row.id,
        tenant_id=row.tenant_id,
        errand=msgspec.json.decode(row.body, type=Errand),
        created_at=row.created_at,
        attempts=row.attempts,
        first_sent_at=row.first_sent_at,
        due_at=row.due_at,
        outcome=row.outcome,
        object_id=row.object_id,
        reason=row.reason,
        spent=row.spent,
    )
