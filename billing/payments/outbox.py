"""What Stripe is to be told: kept in the transaction that wants it, told until Stripe has answered.

An attempt is written down before it is made, and its answer is applied as a webhook's fact is: whichever
comes first, or alone, has the same effect. So a process may die anywhere. Without an answer it is made again
 under the same key, after growing pauses, without end: what Stripe is owed does not lapse because Stripe
was away. What it refuses is undone in our books.

Stripe keeps what it answered under a key, its own failures (5xx) too, for a day. So after such an answer, and
after a day, the next attempt looks first whether the order has had its effect, then goes under another key.
"""

import logging
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, assert_never

from billing import queue
from billing.audit import service as audit
from billing.audit.event import Deed
from billing.db.access import OPERATOR_READ, SETTLER
from billing.db.transaction import Connection, Database
from billing.errors import (
    PaymentDeclined,
    PaymentRefused,
    PaymentUnavailable,
    PaymentUnknown,
)
from billing.ledger import posting
from billing.ledger import repository as ledger
from billing.ledger.balance import BalanceVersion
from billing.ledger.credit import Grant
from billing.payments import repository
from billing.payments.applying import InvoiceBook, apply, awaken
from billing.payments.declined import SWITCHED_OFF, Declined, decline
from billing.payments.fact import CustomerFact, PaymentFact
from billing.payments.minor import from_minor
from billing.payments.order import (
    METER_AGE_MAX,
    Errand,
    InvoicePush,
    MeterOrder,
    Order,
    RefundOrder,
    TopUpOrder,
    is_automatic,
    order_of,
)
from billing.payments.payment import ACTOR

if TYPE_CHECKING:
    from billing.payments.stripe import Stripe

JOB: Final = "tell_stripe"
DUE_MAX: Final = 100

_Refusal = PaymentDeclined | PaymentRefused | PaymentUnknown

_PAID: Final = frozenset({"succeeded", "processing"})

_log: Final = logging.getLogger(__name__)


async def put(connection: Connection, tenant_id: str, key: str, errand: Errand, at: datetime) -> str:
    """Have Stripe told something if this transaction, a settler's, commits.

    Args:
        connection: the caller's.
        tenant_id: whom it concerns.
        key: names it among the tenant's errands of this kind: the same one again is the same errand.
        errand: what to tell.
        at: now.

    Returns:
        The id of its order.
    """
    order = order_of(tenant_id, key, errand, at)
    if await repository.insert_order(connection, order):
        await queue.enqueue(connection, JOB, {"order_id": order.id})
    return order.id


class Outbox:
    """The telling end; ``invoices`` as in `Inbox`."""

    def __init__(self, database: Database, stripe: "Stripe", invoices: InvoiceBook | None = None) -> None:
        self._database = database
        self._stripe = stripe
        self._invoices = invoices

    async def send_due(self, at: datetime) -> list[BalanceVersion]:
        """Send every order whose next attempt is due. Returns what tenants can spend since."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            due = await repository.select_due(connection, at, DUE_MAX)
        return [version for order_id in due for version in await self.send(order_id, at)]

    async def send(self, order_id: str, at: datetime, *, now: bool = False) -> list[BalanceVersion]:
        """Attempt an order that is due; ``now``: also before it is.

        Returns:
            What its tenant can spend since, also of an order that is done; empty if no money moved, or it is
            not its turn.

        Raises:
            PaymentUnknown: no order has this id.
            StoreUnavailable: what Stripe answered is not written down; the next attempt will.
        """
        order = await self._begin(order_id, at, now=now)
        if order is None:
            return []
        if order.due_at is None:
            async with self._database.transaction(OPERATOR_READ) as connection:
                return await ledger.select_versions(connection, [order.tenant_id])
        try:
            fact = await self._tell(order, at)
        except PaymentUnavailable as error:
            await self._note(order, error)
            return []
        except (PaymentDeclined, PaymentRefused, PaymentUnknown) as error:
            return await self._give_up(order, error, at)
        return await self._finish(order, fact, at)

    async def _begin(self, order_id: str, at: datetime, *, now: bool) -> Order | None:
        async with self._database.transaction(SETTLER) as connection:
            order = await repository.select_order(connection, order_id)
            if order is None:
                raise PaymentUnknown(order_id)
            if order.due_at is None:
                return order
            if order.due_at > at and not now:
                return None
            order = replace(order, attempts=order.attempts + 1, first_sent_at=order.first_sent_at or at)
            order = replace(order, due_at=at + order.pause())
            await repository.update_order(connection, order)
        return order

    async def _tell(self, order: Order, at: datetime) -> PaymentFact | None:
        """One attempt; None where no object of Stripe's answers it."""
        stripe, mark, look = self._stripe, order.mark, order.must_look(at)
        match order.errand:
            case RefundOrder(payment):
                found = await stripe.refunded(mark, payment) if look else None
                return found or await stripe.refund(mark, order.errand)
            case TopUpOrder():
                await self._check_wanted(order)
                customer = await self._customer(order, at)
                found = await stripe.charged(mark, customer.id, order.created_at) if look else None
                return found or await stripe.charge(mark, customer, order.errand)
            case InvoicePush():
                customer = await self._customer(order, at)
                return await stripe.push_invoice(mark, customer, order.errand, look=order.attempts > 1)
            case MeterOrder() as usage:
                await self._send_usage(order, usage, at)
                return None
            case _:
                assert_never(order.errand)

    async def _check_wanted(self, order: Order) -> None:
        """A rule that was switched off before anything was sent charges nobody; what has begun goes on."""
        if order.attempts > 1 or not is_automatic(order.id, order.tenant_id):
            return
        async with self._database.transaction(OPERATOR_READ) as connection:
            rule = await ledger.select_auto_top_up(connection, order.tenant_id, lock=False)
        if rule is None or not rule.enabled:
            raise PaymentRefused(SWITCHED_OFF, "the tenant's rule was switched off meanwhile")

    async def _send_usage(self, order: Order, usage: MeterOrder, at: datetime) -> None:
        if at - usage.hour > METER_AGE_MAX:
            raise PaymentRefused("too_old", f"usage of {usage.hour:%Y-%m-%d %H:%M} is older than 35 days")
        if order.forgotten(at):
            raise PaymentRefused("not_known", "Stripe may have counted it before, and does not remember")
        customer = await self._customer(order, at)
        await self._stripe.send_usage(order.mark, customer.id, usage)

    async def _customer(self, order: Order, at: datetime) -> CustomerFact:
        """The tenant's customer as it is now, made where it has none."""
        async with self._database.transaction(OPERATOR_READ) as connection:
            known = await repository.select_customer(connection, tenant_id=order.tenant_id)
        if known is not None:
            return await self._stripe.customer(known.customer_id)
        made = await self._stripe.create_customer(order.tenant_id, order.spent)
        async with self._database.transaction(SETTLER) as connection:
            await link(connection, order.tenant_id, made.id, at, actor=ACTOR)
        return made

    async def _note(self, order: Order, error: PaymentUnavailable) -> None:
        """An attempt without an answer of use: the next one is due already."""
        _log.warning("Stripe was not told of %s, attempt %d: %s", order.id, order.attempts, error)
        async with self._database.transaction(SETTLER) as connection:
            present = await repository.select_order(connection, order.id)
            if present is not None and present.outcome == "open":
                noted = replace(present, reason=str(error), spent=present.spent + error.answered)
                await repository.update_order(connection, noted)

    async def _finish(self, order: Order, fact: PaymentFact | None, at: datetime) -> list[BalanceVersion]:
        balances: list[BalanceVersion] = []
        async with self._database.transaction(SETTLER) as connection:
            if fact is not None:
                balances = (await apply(connection, fact, at, self._invoices)).balances
            present = await repository.select_order(connection, order.id)
            assert present is not None
            done = replace(present, outcome="done", due_at=None, reason=None)
            if fact is not None:
                done = replace(done, object_id=fact.id)
                if fact.kind == "payment" and fact.status not in _PAID:
                    done = replace(done, outcome="failed", reason=fact.reason or fact.status)
            await repository.update_order(connection, done)
        return balances

    async def _give_up(self, order: Order, error: _Refusal, at: datetime) -> list[BalanceVersion]:
        """Stripe will not do it: take back what our books say of it."""
        reason = str(error)
        _log.warning("Stripe refused %s: %s", order.id, reason)
        balances: list[BalanceVersion] = []
        async with self._database.transaction(SETTLER) as connection:
            match order.errand:
                case RefundOrder(_, minor, currency):
                    amount, key = from_minor(minor, currency), f"stripe:{order.id}:2"
                    why = f"refund {order.id} was not made: {reason}"
                    grant = Grant(amount, "topped_up", why, ACTOR, idempotency_key=key)
                    balances = [(await posting.post(connection, order.tenant_id, grant, at)).balance]
                case TopUpOrder(minor, currency):
                    code = "not_known" if isinstance(error, PaymentUnknown) else error.code
                    amount = from_minor(minor, currency)
                    declined = Declined(order.id, order.tenant_id, amount, currency, code)
                    await decline(connection, declined, at)
                case _:
                    pass
            present = await repository.select_order(connection, order.id)
            assert present is not None
            await repository.update_order(
                connection, replace(present, outcome="failed", due_at=None, reason=reason)
            )
        return balances


async def link(
    connection: Connection, tenant_id: str, customer_id: str, at: datetime, *, actor: str
) -> list[BalanceVersion]:
    """Keep a customer as a tenant's, and apply what was said of it before, in a settler's transaction.

    Raises:
        PaymentRefused: the tenant has another customer, or the customer another tenant.
        StoreRefused: no tenant has this id.
    """
    await repository.lock(connection, customer_id)
    if not await repository.insert_customer(connection, tenant_id, customer_id, at):
        known = await repository.select_customer(connection, tenant_id=tenant_id)
        if known is None or known.customer_id != customer_id:
            raise PaymentRefused("linked_already", f"{tenant_id} or {customer_id} is linked to another")
        return []
    deed = Deed(tenant_id, actor, "payment.link", customer_id, at, after={"customer_id": customer_id})
    balances = await awaken(connection, customer_id, at)
    await audit.append(connection, deed)
    return balances
