"""Stripe's interface as far as we use it; the one module that imports its SDK.

Every write carries an idempotency key made of what it is for, and nothing is repeated in here: who asks knows
when to ask again, by the same key. The SDK's own client of aiohttp carries the calls, for aiohttp is what we
have; where it lets an error of aiohttp's through, that counts as unavailable too.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import aiohttp
import stripe
from stripe import AIOHTTPClient, RequestOptions, StripeClient, StripeObject

from billing.errors import PaymentDeclined, PaymentRefused, PaymentUnavailable, PaymentUnknown
from billing.payments.fact import NUMBER, ORDER, PURPOSE, TOP_UP, CustomerFact, PaymentFact, fact_of
from billing.payments.minor import cents_to_minor
from billing.payments.order import InvoicePush, Mark, MeterOrder, RefundOrder, TopUpOrder

API_VERSION: Final = "2026-10-28.endive"
ANSWER: Final = "answer"  # the name of a fact that is no event's
TIMEOUT_S: Final = 20
CONNECT_TIMEOUT_S: Final = 5
METER: Final = "kvitto_tokens_{bucket}"
TENANT: Final = "kvitto_tenant"
LINE: Final = "kvitto_line"

_REASON_LENGTH_MAX: Final = 300
_NETWORK: Final = (aiohttp.ClientError, TimeoutError, OSError)
_EXISTS: Final = "already exists"  # said without a code of errors, of a meter event's identifier

stripe.enable_telemetry = False
logging.getLogger("stripe").setLevel(logging.WARNING)  # at DEBUG it writes whole bodies


@dataclass(frozen=True, slots=True)
class StripeAccess:
    """``api_url`` None: Stripe itself."""

    secret_key: str = field(repr=False)
    api_url: str | None = None


class Stripe:
    """A client, to be closed; ``clock`` dates answers, which say nothing of their own instant.

    Every method raises:
        PaymentUnavailable: no answer, or none of use; Stripe may have acted. The same call again is safe.
        PaymentRefused: an answer that the same call will get again.
        PaymentUnknown: an object that is not there.
    """

    def __init__(
        self, access: StripeAccess, clock: Callable[[], datetime], *, timeout_s: int = TIMEOUT_S
    ) -> None:
        url = (access.api_url or stripe.api_base).rstrip("/")
        self._http = AIOHTTPClient(timeout=aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_TIMEOUT_S))
        self._client = StripeClient(
            access.secret_key,
            stripe_version=API_VERSION,
            base_addresses={"api": url},
            max_network_retries=0,
            http_client=self._http,
        )
        self._secret = access.secret_key
        self._clock = clock

    async def close(self) -> None:
        """Close connections."""
        await self._http.close_async()  # type: ignore[no-untyped-call]  # the SDK leaves it untyped

    async def create_customer(self, tenant_id: str, spent: int) -> CustomerFact:
        """Make the customer of a tenant; again it is the same one, for a day and so many spent keys."""
        async with self._failures(tenant_id):
            made = await self._client.v1.customers.create_async(
                {"description": tenant_id, "metadata": {TENANT: tenant_id}},
                _once(Mark(f"customer-{tenant_id}", spent)),
            )
        return self._customer(made)

    async def customer(self, customer_id: str) -> CustomerFact:
        """A customer with its default payment method as it is now."""
        async with self._failures(customer_id):
            found = await self._client.v1.customers.retrieve_async(customer_id)
        return self._customer(found)

    async def charge(self, mark: Mark, customer: CustomerFact, order: TopUpOrder) -> PaymentFact:
        """Charge a customer's default payment method while nobody is there to confirm.

        Returns:
            The payment, which may have failed: then it says the reason.

        Raises:
            PaymentDeclined: there is no payment method.
        """
        if customer.method is None:
            raise PaymentDeclined("no_payment_method")
        async with self._failures(customer.id):
            try:
                made = await self._client.v1.payment_intents.create_async(
                    {
                        "amount": order.minor,
                        "currency": order.currency.lower(),
                        "customer": customer.id,
                        "payment_method": customer.method,
                        "off_session": True,
                        "confirm": True,
                        "metadata": {ORDER: mark.order_id, PURPOSE: TOP_UP},
                    },
                    _once(mark),
                )
            except stripe.CardError as error:
                if error.error is None or error.error.payment_intent is None:
                    raise
                made = error.error.payment_intent
        return self._payment(made)

    async def charged(self, mark: Mark, customer_id: str, since: datetime) -> PaymentFact | None:
        """The payment that an order has made since, if it has."""
        async with self._failures(customer_id):
            listed = await self._client.v1.payment_intents.list_async(
                {"customer": customer_id, "created": {"gte": int(since.timestamp())}, "limit": 100}
            )
            return await self._made_by(mark, listed.auto_paging_iter())

    async def refund(self, mark: Mark, order: RefundOrder) -> PaymentFact:
        """Pay back a part of a payment."""
        async with self._failures(order.payment):
            made = await self._client.v1.refunds.create_async(
                {"payment_intent": order.payment, "amount": order.minor, "metadata": {ORDER: mark.order_id}},
                _once(mark),
            )
        return self._payment(made)

    async def refunded(self, mark: Mark, payment_id: str) -> PaymentFact | None:
        """The refund that an order has made, if it has."""
        async with self._failures(payment_id):
            listed = await self._client.v1.refunds.list_async({"payment_intent": payment_id, "limit": 100})
            return await self._made_by(mark, listed.auto_paging_iter())

    async def push_invoice(
        self, mark: Mark, customer: CustomerFact, push: InvoicePush, *, look: bool
    ) -> PaymentFact:
        """Make, fill and finalise an invoice, and charge it where there is a payment method.

        Args:
            mark: of the order.
            customer: whose.
            push: ours.
            look: for what an earlier attempt has left, however old, before anything is made.

        Raises:
            PaymentRefused: Stripe comes to another total; it stays a draft.
        """
        invoices = self._client.v1.invoices
        async with self._failures(push.number):
            found = await self._invoice_of(mark, customer.id) if look else None
            if found is None:
                found = await invoices.create_async(
                    {
                        "customer": customer.id,
                        "currency": push.currency.lower(),
                        "collection_method": "send_invoice",
                        "due_date": int(push.due_at.timestamp()),
                        "auto_advance": False,
                        "pending_invoice_items_behavior": "exclude",
                        "metadata": {ORDER: mark.order_id, NUMBER: push.number},
                    },
                    _once(mark),
                )
            if found.status == "draft":
                await self._fill(mark, found, push, look=look)
                found = await invoices.retrieve_async(found.id)
                total = cents_to_minor(push.total_cents, push.currency)
                if found.total != total:
                    reason = f"invoice {push.number} comes to {found.total} there, to {total} here"
                    raise PaymentRefused("total_differs", reason)
                found = await invoices.finalize_invoice_async(found.id, None, _once(mark, ":finalise"))
            if found.status == "open" and customer.method is not None:
                found = await self._pay(mark, found.id, customer.method)
        return self._payment(found)

    async def send_usage(self, mark: Mark, customer_id: str, order: MeterOrder) -> None:
        """Add an hour's tokens to the meter of their bucket; that they are there already is success."""
        try:
            async with self._failures(customer_id):
                await self._client.v1.billing.meter_events.create_async(
                    {
                        "event_name": METER.format(bucket=order.bucket),
                        "payload": {"stripe_customer_id": customer_id, "value": str(order.tokens)},
                        "identifier": mark.order_id,
                        "timestamp": int(order.hour.timestamp()),
                    },
                    _once(mark),
                )
        except PaymentRefused as refusal:
            if _EXISTS not in refusal.reason:
                raise

    async def _invoice_of(self, mark: Mark, customer_id: str) -> stripe.Invoice | None:
        listed = await self._client.v1.invoices.list_async({"customer": customer_id, "limit": 100})
        async for invoice in listed.auto_paging_iter():
            if _metadata(invoice).get(ORDER) == mark.order_id:
                return invoice
        return None

    async def _fill(self, mark: Mark, invoice: stripe.Invoice, push: InvoicePush, *, look: bool) -> None:
        items = self._client.v1.invoice_items
        there = set()
        if look:
            listed = await items.list_async({"invoice": invoice.id, "limit": 100})
            there = {_metadata(item).get(LINE) async for item in listed.auto_paging_iter()}
        lines = [*((line.description, line.cents) for line in push.lines), ("Tax", push.tax_cents)]
        for number, (description, cents) in enumerate(lines):
            if cents and str(number) not in there:
                await items.create_async(
                    {
                        "customer": str(invoice.customer),
                        "invoice": invoice.id,
                        "amount": cents_to_minor(cents, push.currency),
                        "currency": push.currency.lower(),
                        "description": description,
                        "metadata": {LINE: str(number)},
                    },
                    _once(mark, f":{number}"),
                )

    async def _pay(self, mark: Mark, invoice_id: str, method: str) -> stripe.Invoice:
        """Charge an invoice; declined, it stays open, and who reads the webhooks learns why."""
        try:
            return await self._client.v1.invoices.pay_async(
                invoice_id, {"payment_method": method, "off_session": True}, _once(mark, ":pay")
            )
        except stripe.CardError:
            return await self._client.v1.invoices.retrieve_async(invoice_id)

    async def _made_by(self, mark: Mark, listed: AsyncIterator[StripeObject]) -> PaymentFact | None:
        async for made in listed:
            if _metadata(made).get(ORDER) == mark.order_id:
                return self._payment(made)
        return None

    def _payment(self, answer: StripeObject) -> PaymentFact:
        fact = fact_of(answer.to_dict(), self._clock(), ANSWER)
        assert isinstance(fact, PaymentFact), f"Stripe answered with something else: {fact.id}"
        return fact

    def _customer(self, answer: StripeObject) -> CustomerFact:
        if answer.to_dict().get("deleted"):
            raise PaymentUnknown(str(answer["id"]))
        fact = fact_of(answer.to_dict(), self._clock(), ANSWER)
        assert isinstance(fact, CustomerFact), f"Stripe answered with something else: {fact.id}"
        return fact

    @asynccontextmanager
    async def _failures(self, object_id: str) -> AsyncIterator[None]:
        """Turn the SDK's errors into ours, which hold no headers, bodies or secrets."""
        try:
            yield
        except stripe.CardError as error:
            said = error.error
            code = (said.decline_code if said is not None else None) or error.code
            raise PaymentDeclined(code or "card_declined") from None
        except stripe.InvalidRequestError as error:
            if error.code == "resource_missing":
                raise PaymentUnknown(object_id) from None
            raise PaymentRefused(error.code or "invalid_request", self._said(error)) from None
        except stripe.IdempotencyError:
            # Something of the call has changed since, such as the payment method: look what became of it.
            raise PaymentUnavailable("the idempotency key names another call", answered=True) from None
        except (stripe.AuthenticationError, stripe.PermissionError):
            raise PaymentUnavailable("it does not accept the secret key") from None
        except stripe.StripeError as error:
            status = error.http_status or 0
            reason = f"it answered {status}" if status else "no answer"
            raise PaymentUnavailable(reason, answered=status >= 500) from None
        except _NETWORK as error:
            raise PaymentUnavailable(f"no answer ({type(error).__name__})") from None

    def _said(self, error: stripe.StripeError) -> str:
        text = (error.user_message or type(error).__name__).replace(self._secret, "…")
        return text[:_REASON_LENGTH_MAX]


def _once(mark: Mark, step: str = "") -> RequestOptions:
    return {"idempotency_key": mark.key(step)}


def _metadata(made: StripeObject) -> dict[str, Any]:
    return made.to_dict().get("metadata") or {}
