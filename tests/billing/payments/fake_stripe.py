"""A small Stripe with a memory, faithful to the types of the SDK: a double at the border of the process.

Its objects have the fields that the SDK's classes declare, no others and none missing. Every change of one is
told by an event, signed as Stripe signs; who wants them delivered does so, in what order he likes.
"""

import copy
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, get_args

import stripe

from tests.billing.payments.stripe_wire import Refused, Wire

SECRET_KEY = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"
WEBHOOK_SECRET = "whsec_5WbX5kEWLlfzsGNjH64I8lOOqUB6e8FH"
METER_AGE_MAX = timedelta(days=35)


def shaped(kind: Any, **fields: Any) -> dict[str, Any]:
    """An object of the SDK's class: declared fields alone; those that may be null are, unless given."""
    declared = {
        name: annotation
        for base in reversed(kind.__mro__)
        for name, annotation in vars(base).get("__annotations__", {}).items()
        if name not in {"OBJECT_NAME", "deleted"} and not name.startswith("_")
    }
    assert fields.keys() <= declared.keys(), f"{kind.__name__} has no {fields.keys() - declared.keys()}"
    optional = {name for name, kind_ in declared.items() if type(None) in get_args(kind_)}
    missing = declared.keys() - optional - fields.keys()
    assert not missing, f"{kind.__name__} needs {missing}"
    return dict.fromkeys(sorted(optional)) | fields


def missing(object_id: str) -> Refused:
    message = f"No such object: '{object_id}'"
    return Refused(
        404, {"type": "invalid_request_error", "code": "resource_missing", "param": "id", "message": message}
    )


def invalid(message: str, code: str | None = None) -> Refused:
    return Refused(400, {"type": "invalid_request_error", "code": code, "message": message}, begun=False)


@dataclass
class FakeStripe:
    """``at`` is its clock. ``cards``: by payment method, what a charge of it comes to."""

    at: datetime
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    cards: dict[str, str] = field(default_factory=dict)
    used: dict[str, dict[str, Any]] = field(default_factory=dict)
    page_max: int = 100
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    wire: Wire = field(init=False)
    _numbers: Any = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.wire = Wire(
            SECRET_KEY,
            {
                ("POST", "/v1/customers"): self.make_customer,
                ("GET", "/v1/customers/{id}"): self.show,
                ("POST", "/v1/payment_intents"): self.make_payment,
                ("GET", "/v1/payment_intents"): lambda **asked: self.listed("payment_intent", **asked),
                ("POST", "/v1/refunds"): self.make_refund,
                ("GET", "/v1/refunds"): lambda **asked: self.listed("refund", **asked),
                ("POST", "/v1/invoices"): self.make_invoice,
                ("GET", "/v1/invoices"): lambda **asked: self.listed("invoice", **asked),
                ("GET", "/v1/invoices/{id}"): self.show,
                ("POST", "/v1/invoices/{id}/finalize"): self.finalise,
                ("POST", "/v1/invoices/{id}/pay"): self.pay,
                ("POST", "/v1/invoices/{id}/void"): self.void,
                ("POST", "/v1/invoiceitems"): self.make_item,
                ("GET", "/v1/invoiceitems"): lambda **asked: self.listed("invoiceitem", **asked),
                ("POST", "/v1/billing/meter_events"): self.count_usage,
                ("POST", "/v2/billing/meter_events"): self.count_usage_v2,
            },
        )

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{self.run}{next(self._numbers):08d}"

    @property
    def now(self) -> int:
        return int(self.at.timestamp())

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind, oldest first."""
        return [found for found in self.objects.values() if found["object"] == kind]

    def kept(self, type_: str | None, made: dict[str, Any]) -> dict[str, Any]:
        """Keep an object as it is now, and tell of it."""
        self.objects[made["id"]] = made
        if type_ is not None:
            event = shaped(
                stripe.Event,
                id=self.new_id("evt"),
                object="event",
                api_version="2026-10-28.endive",
                created=self.now,
                data={"object": copy.deepcopy(made)},
                livemode=False,
                pending_webhooks=1,
                type=type_,
            )
            self.events.append(event)
        return made

    def show(self, object_id: str, **_: Any) -> dict[str, Any]:
        if object_id not in self.objects:
            raise missing(object_id)
        return self.objects[object_id]

    def listed(self, kind: str, **asked: Any) -> dict[str, Any]:
        """Newest first, a page at a time."""
        since = int(asked.get("created", {}).get("gte", 0))
        by = {name: asked[name] for name in ("customer", "payment_intent", "invoice") if name in asked}
        found = [
            one
            for one in reversed(self.of(kind))
            if all(one[name] == value for name, value in by.items()) and one.get("created", since) >= since
        ]
        if "starting_after" in asked:
            ids = [one["id"] for one in found]
            found = found[ids.index(asked["starting_after"]) + 1 :]
        limit = min(int(asked.get("limit", 10)), self.page_max)
        url = f"/v1/{kind}s"
        return {"object": "list", "url": url, "data": found[:limit], "has_more": len(found) > limit}

    def make_customer(self, **said: Any) -> dict[str, Any]:
        settings = {"default_payment_method": None, "custom_fields": None, "footer": None}
        made = shaped(
            stripe.Customer,
            id=self.new_id("cus"),
            object="customer",
            created=self.now,
            livemode=False,
            metadata=said.get("metadata", {}),
            description=said.get("description"),
            invoice_settings=settings,
        )
        return self.kept("customer.created", made)

    def give_card(self, customer_id: str, comes_to: str = "succeeds") -> str:
        """Attach a payment method and make it the default.

        ``comes_to``: ``succeeds``, ``processing``, ``authentication_required`` or a code of declines.
        """
        method = self.new_id("pm")
        self.cards[method] = comes_to
        customer = copy.deepcopy(self.objects[customer_id])
        customer["invoice_settings"]["default_payment_method"] = method
        self.kept("customer.updated", customer)
        return method

    def make_payment(self, **said: Any) -> dict[str, Any]:
        if said.get("customer") not in self.objects:
            raise missing(str(said.get("customer")))
        if int(said["amount"]) < 50:
            raise invalid("Amount must be at least $0.50 usd", "amount_too_small")
        made = shaped(
            stripe.PaymentIntent,
            id=self.new_id("pi"),
            object="payment_intent",
            amount=int(said["amount"]),
            amount_capturable=0,
            amount_received=0,
            capture_method="automatic_async",
            confirmation_method="automatic",
            created=self.now,
            currency=said["currency"],
            customer=said["customer"],
            livemode=False,
            metadata=said.get("metadata", {}),
            payment_method_types=["card"],
            status="requires_confirmation",
            payment_method=said["payment_method"],
        )
        self.kept("payment_intent.created", made)
        if said.get("confirm") == "true":
            return self.confirm(made)
        return made

    def confirm(self, made: dict[str, Any]) -> dict[str, Any]:
        comes_to = self.cards[made["payment_method"]]
        if comes_to == "succeeds":
            return self.succeed(made["id"])
        made = copy.deepcopy(made)
        if comes_to == "processing":
            return self.kept("payment_intent.processing", made | {"status": "processing"})
        code = comes_to if comes_to == "authentication_required" else "card_declined"
        error = {
            "type": "card_error",
            "code": code,
            "decline_code": comes_to,
            "message": "Your card was declined.",
        }
        failed = made | {
            "status": "requires_payment_method",
            "last_payment_error": error,
            "payment_method": None,
        }
        self.kept("payment_intent.payment_failed", failed)
        raise Refused(402, error | {"payment_intent": failed})

    def succeed(self, payment_id: str) -> dict[str, Any]:
        """A payment that was confirmed, or is being processed, succeeds."""
        made = copy.deepcopy(self.objects[payment_id])
        received = {"status": "succeeded", "amount_received": made["amount"], "last_payment_error": None}
        return self.kept("payment_intent.succeeded", made | received | {"latest_charge": self.new_id("ch")})

    def make_refund(self, **said: Any) -> dict[str, Any]:
        payment = self.show(said["payment_intent"])
        amount = int(said.get("amount", payment["amount_received"]))
        before = sum(
            one["amount"]
            for one in self.of("refund")
            if one["payment_intent"] == payment["id"] and one["status"] not in {"failed", "canceled"}
        )
        if before + amount > payment["amount_received"]:
            code = "charge_already_refunded"
            message = f"Refund amount ({amount}) is greater than unrefunded amount on charge"
            raise Refused(400, {"type": "invalid_request_error", "code": code, "message": message})
        made = shaped(
            stripe.Refund,
            id=self.new_id("re"),
            object="refund",
            amount=amount,
            created=self.now,
            currency=payment["currency"],
            metadata=said.get("metadata", {}),
            payment_intent=payment["id"],
            charge=payment["latest_charge"],
            status="succeeded",
        )
        self.kept("refund.created", made)
        self.tell_of_charge(payment, before + amount)
        return made

    def tell_of_charge(self, payment: dict[str, Any], refunded: int) -> None:
        """The charge's own event, which Stripe sends beside the refund's."""
        whole = {"id": payment["latest_charge"], "object": "charge", "amount": payment["amount"]}
        charge = whole | {"amount_refunded": refunded, "payment_intent": payment["id"]}
        self.kept("charge.refunded", charge)

    def fail_refund(self, refund_id: str) -> dict[str, Any]:
        failed = {"status": "failed", "failure_reason": "expired_or_canceled_card"}
        return self.kept("refund.failed", copy.deepcopy(self.objects[refund_id]) | failed)

    def dispute(
        self, payment_id: str, amount: int | None = None, status: str = "needs_response"
    ) -> dict[str, Any]:
        """A bank takes a payment back."""
        payment = self.objects[payment_id]
        made = shaped(
            stripe.Dispute,
            id=self.new_id("dp"),
            object="dispute",
            amount=amount or payment["amount_received"],
            balance_transactions=[],
            charge=payment["latest_charge"],
            created=self.now,
            currency=payment["currency"],
            enhanced_eligibility_types=[],
            evidence={},
            evidence_details={"has_evidence": False, "past_due": False, "submission_count": 0},
            is_charge_refundable=False,
            livemode=False,
            metadata={},
            payment_intent=payment_id,
            reason="fraudulent",
            status=status,
        )
        return self.kept("charge.dispute.created", made)

    def decide(self, dispute_id: str, status: str) -> dict[str, Any]:
        """A dispute is won, lost or closed."""
        return self.kept(
            "charge.dispute.closed", copy.deepcopy(self.objects[dispute_id]) | {"status": status}
        )

    def make_invoice(self, **said: Any) -> dict[str, Any]:
        nothing = ("amount_due", "amount_paid", "amount_remaining", "amount_overpaid", "amount_shipping")
        more = ("attempt_count", "starting_balance", "subtotal", "total")
        notes = ("post_payment_credit_notes_amount", "pre_payment_credit_notes_amount")
        made = shaped(
            stripe.Invoice,
            id=self.new_id("in"),
            object="invoice",
            attempted=False,
            automatic_tax={"enabled": False},
            collection_method=said["collection_method"],
            created=self.now,
            currency=said["currency"],
            customer=said["customer"],
            default_tax_rates=[],
            discounts=[],
            due_date=int(said["due_date"]),
            issuer={"type": "self"},
            lines={"object": "list", "data": [], "has_more": False, "url": "/v1/invoices/lines"},
            livemode=False,
            metadata=said.get("metadata", {}),
            payment_settings={},
            period_end=self.now,
            period_start=self.now,
            status="draft",
            status_transitions={},
            **dict.fromkeys((*nothing, *more, *notes), 0),
        )
        return self.kept("invoice.created", made)

    def make_item(self, **said: Any) -> dict[str, Any]:
        invoice = self.show(said["invoice"])
        if invoice["status"] != "draft":
            raise invalid("This invoice is no longer editable", "invoice_not_editable")
        made = shaped(
            stripe.InvoiceItem,
            id=self.new_id("ii"),
            object="invoiceitem",
            amount=int(said["amount"]),
            currency=said["currency"],
            customer=said["customer"],
            date=self.now,
            description=said.get("description"),
            discountable=True,
            invoice=invoice["id"],
            livemode=False,
            metadata=said.get("metadata", {}),
            period={"start": self.now, "end": self.now},
            proration=False,
            quantity=1,
            quantity_decimal="1",
        )
        self.kept(None, made)
        total = sum(item["amount"] for item in self.of("invoiceitem") if item["invoice"] == invoice["id"])
        self.kept(None, invoice | {"total": total, "amount_due": total, "amount_remaining": total})
        return made

    def change_invoice(self, invoice_id: str, status: str, event: str, **more: Any) -> dict[str, Any]:
        return self.kept(event, copy.deepcopy(self.show(invoice_id)) | {"status": status, **more})

    def finalise(self, invoice_id: str, **_: Any) -> dict[str, Any]:
        if self.show(invoice_id)["status"] != "draft":
            raise invalid("This invoice is already finalized, you can't re-finalize it.")
        return self.change_invoice(invoice_id, "open", "invoice.finalized")

    def pay(self, invoice_id: str, payment_method: str = "", **_: Any) -> dict[str, Any]:
        invoice = self.show(invoice_id)
        if invoice["status"] != "open":
            raise invalid("Invoice is already paid", "invoice_already_paid")
        if self.cards.get(payment_method, "succeeds") != "succeeds":
            self.kept("invoice.payment_failed", copy.deepcopy(invoice))
            raise Refused(402, {"type": "card_error", "code": "card_declined", "message": "Declined."})
        total = invoice["total"]
        return self.change_invoice(invoice_id, "paid", "invoice.paid", amount_paid=total, amount_remaining=0)

    def void(self, invoice_id: str, **_: Any) -> dict[str, Any]:
        return self.change_invoice(invoice_id, "void", "invoice.voided")

    def count_usage(self, **said: Any) -> dict[str, Any]:
        at = datetime.fromtimestamp(int(said["timestamp"]), UTC)
        return self._count(stripe.billing.MeterEvent, "billing.meter_event", at, int(at.timestamp()), said)

    def count_usage_v2(self, **said: Any) -> dict[str, Any]:
        at = datetime.fromisoformat(said["timestamp"])
        kind = stripe.v2.billing.MeterEvent
        return self._count(kind, "v2.billing.meter_event", at, said["timestamp"], said)

    def _count(self, kind: Any, name: str, at: datetime, stamp: Any, said: dict[str, Any]) -> dict[str, Any]:
        if not timedelta(minutes=-5) <= self.at - at <= METER_AGE_MAX:
            raise invalid("The timestamp must be within the past 35 calendar days or up to 5 minutes ahead")
        identifier = said["identifier"]
        if identifier in self.used:
            raise invalid(f"An event already exists with identifier {identifier}.")
        created: Any = self.now if name == "billing.meter_event" else self.at.isoformat()
        self.used[identifier] = shaped(
            kind,
            object=name,
            created=created,
            event_name=said["event_name"],
            identifier=identifier,
            livemode=False,
            payload=said["payload"],
            timestamp=stamp,
        )
        return self.used[identifier]

    def signed(self, event: dict[str, Any], at: datetime | None = None) -> tuple[bytes, str]:
        """Body and ``Stripe-Signature`` of a delivery, by the SDK's own hand."""
        body = json.dumps(event, separators=(",", ":"))
        stamp = int((at or self.at).timestamp())
        header = stripe.WebhookSignature.generate_signature_header(body, WEBHOOK_SECRET, stamp)
        return body.encode(), header

    def told(self, *types: str) -> Iterable[dict[str, Any]]:
        """The events of these types, oldest first."""
        return [event for event in self.events if event["type"] in types]
