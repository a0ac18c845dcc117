"""Payments as people look at them and act on them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from billing.db.access import OPERATOR_READ, SETTLER, reading
from billing.db.transaction import Connection, Database
from billing.errors import AmountExceeds, AmountInvalid, PaymentUnknown
from billing.ledger import posting
from billing.ledger.auto_top_up import TopUpRequest
from billing.ledger.balance import BalanceVersion
from billing.ledger.credit import Refund
from billing.money import Femto, decimal_of
from billing.payments import repository
from billing.payments.customer import Customer
from billing.payments.event import Received
from billing.payments.minor import from_minor, to_minor
from billing.payments.order import Order, RefundOrder, TopUpOrder, order_of
from billing.payments.outbox import link, put
from billing.payments.payment import Payment

ROWS_MAX: Final = 100

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Story:
    """A payment, a refund, a dispute or an invoice with all that belongs to it, newest last."""

    payment: Payment
    currency: str
    reversals: Sequence[Payment]
    events: Sequence[Received]
    order: Order | None


@dataclass(frozen=True, slots=True)
class Refunded:
    """A refund in our books that Stripe is to be told of."""

    order_id: str
    amount: Femto
    balance: BalanceVersion


@dataclass(frozen=True, slots=True)
class RefundAsked:
    """``amount`` None: all that can be. ``key``: the same one again is the same refund."""

    payment_id: str
    amount: Femto | None
    reason: str
    actor: str
    key: str


class Payments:
    """Reads, and what is kept for Stripe to be told. Nobody is called here."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def customers(self) -> list[Customer]:
        """All tenants that Stripe knows."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            return await repository.select_customers(connection)

    async def link(
        self, tenant_id: str, customer_id: str, at: datetime, *, actor: str
    ) -> list[BalanceVersion]:
        """Say which customer of Stripe's a tenant is; what was said of it before is applied now.

        Raises:
            PaymentRefused: one of them is linked to another.
            StoreRefused: no tenant has this id.
        """
        async with self._database.transaction(SETTLER) as connection:
            return await link(connection, tenant_id, customer_id, at, actor=actor)

    async def payments(self, tenant_id: str | None = None, rows_max: int = ROWS_MAX) -> list[Payment]:
        """The newest payments, refunds, disputes and invoices, of one tenant or all."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_payments(connection, tenant_id, rows_max)

    async def orders(
        self, tenant_id: str | None = None, outcome: str | None = None, rows_max: int = ROWS_MAX
    ) -> list[Order]:
        """The newest of what Stripe is or was to be told."""
        async with self._database.transaction(reading(tenant_id)) as connection:
            return await repository.select_orders(connection, tenant_id, rows_max, outcome)

    async def order(self, order_id: str) -> Order:
        """One order.

        Raises:
            PaymentUnknown: none has this id.
        """
        async with self._database.transaction(SETTLER) as connection:
            found = await repository.select_order(connection, order_id)
        if found is None:
            raise PaymentUnknown(order_id)
        return found

    async def story(self, payment_id: str) -> Story:
        """One payment with all that is known of it.

        Raises:
            PaymentUnknown: none has this id.
        """
        async with self._database.transaction(SETTLER) as connection:
            found, customer = await _payment(connection, payment_id)
            order = (
                None if found.order_id is None else await repository.select_order(connection, found.order_id)
            )
            return Story(
                payment=found,
                currency=customer.currency,
                reversals=await repository.select_children(connection, payment_id),
                events=await repository.select_events(connection, {"object_id": payment_id}, ROWS_MAX),
                order=order,
            )

    async def refund(self, asked: RefundAsked, at: datetime) -> Refunded:
        """Pay back a payment or a part of it: in our books now, and at Stripe once it has been told.

        Raises:
            PaymentUnknown: no payment has this id, or it has not come in.
            AmountExceeds: more than remains of the payment, or of the tenant's paid credit.
            AmountInvalid: no whole number of the currency's smallest unit.
            MovementConflict: the key names a refund of another amount.
        """
        async with self._database.transaction(SETTLER) as connection:
            await repository.lock(connection, asked.payment_id)
            paid, customer = await _payment(connection, asked.payment_id)
            if not paid.came_in:
                raise PaymentUnknown(asked.payment_id)
            probe = order_of(paid.tenant_id, asked.key, RefundOrder(paid.id, 0, customer.currency), at)
            before = await repository.select_order(connection, probe.id)
            amount = await _refundable(connection, paid, asked.amount, before)
            errand = RefundOrder(paid.id, to_minor(amount, customer.currency), customer.currency)
            key = f"stripe:{probe.id}:1"
            refund = Refund(amount, asked.reason, asked.actor, idempotency_key=key)
            posted = await posting.post(connection, paid.tenant_id, refund, at)
            order_id = await put(connection, paid.tenant_id, asked.key, errand, at)
        return Refunded(order_id, amount, posted.balance)

    async def order_top_ups(self, connection: Connection, requests: list[TopUpRequest]) -> None:
        """Have requests of tenants that Stripe knows paid; the others' are for people to see to.

        For `Ledger.request_top_ups`, within its transaction.
        """
        for request in requests:
            customer = await repository.select_customer(connection, tenant_id=request.tenant_id)
            if customer is None or customer.deleted is not None:
                continue
            try:
                minor = to_minor(request.amount, customer.currency)
            except AmountInvalid as error:
                _log.warning("the top-up of %s cannot be paid: %s", request.tenant_id, error)
                continue
            errand = TopUpOrder(minor, customer.currency)
            await put(connection, request.tenant_id, request.idempotency_key, errand, request.requested_at)


async def _payment(connection: Connection, payment_id: str) -> tuple[Payment, Customer]:
    found = await repository.select_payment(connection, payment_id)
    if found is None:
        raise PaymentUnknown(payment_id)
    customer = await repository.select_customer(connection, tenant_id=found.tenant_id)
    assert customer is not None
    return found, customer


async def _refundable(
    connection: Connection, paid: Payment, asked: Femto | None, before: Order | None
) -> Femto:
    """The amount asked for, checked; of a refund that was asked for before, its own."""
    if before is not None:
        assert isinstance(before.errand, RefundOrder)
        return asked or from_minor(before.errand.minor, before.errand.currency)
    out: int = sum(
        child.amount for child in await repository.select_children(connection, paid.id) if child.legs % 2
    )
    for order in await repository.select_open_refunds(connection, paid.id):
        assert isinstance(order.errand, RefundOrder)
        out += from_minor(order.errand.minor, order.errand.currency)
    left = Femto(paid.amount - out)
    amount = left if asked is None else asked
    if amount > left or not left:
        raise AmountExceeds(decimal_of(amount), "rest of the payment", decimal_of(left))
    return amount
