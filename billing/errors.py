"""Everything that can go wrong in billing, as a tree.

BillingError
├── UsageInvalid        the engine reported impossible token counts
├── PriceMissing        no price covers (model, currency, instant)
├── TierMissing         the price in force does not offer this tier
├── PriceInvalid        a price book says something that is no price
├── PriceConflict       a published price row cannot be changed, nor be put in force unseen
├── PlanMissing         no price plan has this name
├── PlanConflict        a plan's name is taken, or a tenant cannot be placed on it like that
├── AmountInvalid       a text or number is no amount of money that can be granted
├── ReasonMissing       money was to be moved without a reason or an actor
├── AmountExceeds       more than there is: paid credit to refund, debt to write off
├── MovementConflict    an idempotency key already names another movement of money
├── TenantMissing       no tenant has this name or id
├── TenantExists        the name is taken
├── ErasureRefused      a tenant cannot be erased as it is now
├── TenancyInvalid      a tenant, project, key, user or webhook that means nothing
├── ProjectMissing      no project has this name or id
├── ProjectExists       the tenant has a project of this name
├── KeyMissing          no API key has this id
├── UserMissing         no user has this id
├── UserExists          the tenant has a user of this e-mail address
├── LimitInvalid        a limit or budget that means nothing
├── IntervalInvalid     a stretch of time or a zone that means nothing
├── ReportInvalid       a report or an export that means nothing, or is more than is told at once
├── ChargeUnexplained   a charge that its price row does not explain, or whose price row is not there
├── ExportMissing       no export has this id, or its file is not kept any more
├── ExportsBusy         too many exports of this tenant wait already
├── LimitMissing        no limit or budget has this id
├── WebhookMissing      no webhook has this id
├── NoticeMissing       no notice has this id
├── AliasInvalid        a pattern or a model of an alias that is no name
├── AliasMissing        no alias has this pattern
├── ReceiptInvalid      a text is no receipt, or no line of a receipts file
├── BundleInvalid       a bundle of receipts cannot be read: truncated, foreign, or not laid out as one
├── ReceiptMissing      the log has no receipt of this request, or it is erased
├── ReceiptPending      the request is settled, and not in the log yet
├── HeadMissing         the log has no head of this size
├── ProofBroken         hashes do not prove what they are said to prove
├── BalanceExhausted    the tenant cannot cover the hold
├── TermsInvalid        terms of invoices, a coupon or a profile that mean nothing
├── UsageUnexplained    settled usage that the published prices do not give
├── PeriodOpen          a period that cannot be closed yet
├── InvoiceInvalid      a text is no invoice document
├── DocumentUnprintable no PDF can be made of a document here
├── InvoiceMissing      no document has this number
├── InvoiceConflict     a document in another state, more than it leaves open, terms that contradict one
├── WebhookRefused      a webhook that is not signed by the payment provider, or says nothing readable
├── PaymentDeclined     the tenant's bank, or its lack of a payment method, refused a payment
├── PaymentUnknown      no payment, customer or event of the provider's has this id
├── PaymentRefused      the payment provider refuses a request: trying again will not help
├── PaymentUnavailable  the payment provider cannot be reached, or could not serve: trying again may help
├── PaymentsMissing     no payment provider is configured
├── RolesMissing        the database lacks the roles that transactions act as
├── StoreUnavailable    Postgres cannot be reached, or could not serve in time: trying again may help
└── StoreRefused        Postgres refused a row: trying again will not help
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar


class BillingError(Exception):
    """Root of the tree; never raised itself."""


@dataclass(eq=False)
class Faulty(BillingError):
    """Those that say ``what`` is wrong, and why; never raised itself."""

    what: ClassVar[str]
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


@dataclass(eq=False)
class Placed(BillingError):
    """Those that say at which ``field``, or part, something is wrong, and why; never raised itself."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class UsageInvalid(Faulty):
    """The engine reported impossible token counts."""

    what = "impossible token counts"


@dataclass(eq=False)
class PriceMissing(BillingError):
    """No price covers (model, currency, instant)."""

    model: str
    currency: str
    at: datetime

    def __str__(self) -> str:
        return f"no price for {self.model} in {self.currency} at {self.at.isoformat()}"


@dataclass(eq=False)
class TierMissing(BillingError):
    """The price in force does not offer this tier."""

    model: str
    currency: str
    tier: str

    def __str__(self) -> str:
        return f"{self.model} is not offered in {self.currency} at the tier {self.tier!r}"


@dataclass(eq=False)
class PriceInvalid(BillingError):
    """A price book says something that is no price.

    ``place`` says where in it; ``file`` and ``line`` where that is written, if it was read from one.
    """

    place: str
    reason: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        written = "" if self.file is None else f"{self.file}:{self.line}: "
        return f"{written}{self.place}: {self.reason}"


@dataclass(eq=False)
class PriceConflict(BillingError):
    """A published price row cannot be changed, nor be put in force before every gateway has seen it."""

    price_row_id: str
    reason: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        written = "" if self.file is None else f"{self.file}:{self.line}: "
        return f"{written}price {self.price_row_id}: {self.reason}"


@dataclass(eq=False)
class PlanMissing(BillingError):
    """No price plan has this name."""

    plan: str

    def __str__(self) -> str:
        return f"no price plan {self.plan!r}"


@dataclass(eq=False)
class PlanConflict(BillingError):
    """A plan's name is taken, or a tenant cannot be placed on it like that."""

    plan: str
    reason: str

    def __str__(self) -> str:
        return f"price plan {self.plan!r}: {self.reason}"


@dataclass(eq=False)
class AmountInvalid(BillingError):
    """A text or number is no amount of money that can be granted."""

    text: str

    def __str__(self) -> str:
        return f"not a positive amount of money with at most 15 decimals: {self.text!r}"


@dataclass(eq=False)
class ReasonMissing(BillingError):
    """Money was to be moved without a reason or an actor."""

    def __str__(self) -> str:
        return "every movement of money names its reason and its actor"


@dataclass(eq=False)
class AmountExceeds(BillingError):
    """More than there is; ``of`` names what there is not enough of, amounts are decimals."""

    amount: str
    of: str
    at_most: str

    def __str__(self) -> str:
        return f"{self.amount} is more than the {self.of}, which is {self.at_most}"


@dataclass(eq=False)
class MovementConflict(BillingError):
    """An idempotency key already names another movement of this tenant's money."""

    tenant_id: str
    idempotency_key: str

    def __str__(self) -> str:
        return f"idempotency key {self.idempotency_key!r} already names another movement of money"


@dataclass(eq=False)
class TenantMissing(BillingError):
    """No tenant has this name or id."""

    name_or_id: str

    def __str__(self) -> str:
        return f"no tenant {self.name_or_id!r}"


@dataclass(eq=False)
class TenantExists(BillingError):
    """The name is taken."""

    name: str

    def __str__(self) -> str:
        return f"tenant {self.name!r} exists already"


@dataclass(eq=False)
class ErasureRefused(BillingError):
    """A tenant cannot be erased as it is now."""

    tenant_id: str
    reason: str

    def __str__(self) -> str:
        return f"tenant {self.tenant_id} cannot be erased: {self.reason}"


class TenancyInvalid(Placed):
    """A tenant, project, key, user or webhook that means nothing; ``field`` says which part of it."""


@dataclass(eq=False)
class ProjectMissing(BillingError):
    """No project of this tenant has this name or id."""

    name_or_id: str

    def __str__(self) -> str:
        return f"no project {self.name_or_id!r}"


@dataclass(eq=False)
class ProjectExists(BillingError):
    """The tenant has a project of this name."""

    name: str

    def __str__(self) -> str:
        return f"project {self.name!r} exists already"


@dataclass(eq=False)
class KeyMissing(BillingError):
    """No API key has this id."""

    key_id: str

    def __str__(self) -> str:
        return f"no API key {self.key_id!r}"


@dataclass(eq=False)
class UserMissing(BillingError):
    """No user has this id."""

    user_id: str

    def __str__(self) -> str:
        return f"no user {self.user_id!r}"


@dataclass(eq=False)
class UserExists(BillingError):
    """The tenant has a user of this e-mail address."""

    email: str

    def __str__(self) -> str:
        return f"user {self.email!r} exists already"


class LimitInvalid(Faulty):
    """A limit or budget that means nothing."""

    what = "no limit"


class IntervalInvalid(Faulty):
    """A stretch of time or a zone that means nothing."""

    what = "no stretch of time"


@dataclass(eq=False)
class ReportInvalid(BillingError):
    """A report or an export that means nothing, or is more than is told at once; ``field`` says where."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


@dataclass(eq=False)
class ChargeUnexplained(BillingError):
    """A charge that its price row does not explain, or whose price row is not there."""

    price_row_id: str
    window: str
    tier: str
    reason: str

    def __str__(self) -> str:
        return f"price {self.price_row_id}, window {self.window!r}, tier {self.tier!r}: {self.reason}"


@dataclass(eq=False)
class ExportMissing(BillingError):
    """No export has this id, or its file is not kept any more."""

    export_id: str

    def __str__(self) -> str:
        return f"no export {self.export_id!r}, or not any more"


@dataclass(eq=False)
class ExportsBusy(BillingError):
    """Too many exports of this tenant wait already."""

    waiting_max: int

    def __str__(self) -> str:
        return f"{self.waiting_max} exports are being made already: wait for one of them"


@dataclass(eq=False)
class LimitMissing(BillingError):
    """No limit or budget has this id."""

    limit_id: str

    def __str__(self) -> str:
        return f"no limit or budget {self.limit_id!r}"


@dataclass(eq=False)
class WebhookMissing(BillingError):
    """No webhook has this id."""

    endpoint_id: str

    def __str__(self) -> str:
        return f"no webhook {self.endpoint_id!r}"


@dataclass(eq=False)
class NoticeMissing(BillingError):
    """No notice of this tenant has this id."""

    notice_id: str

    def __str__(self) -> str:
        return f"no notice {self.notice_id!r}"


@dataclass(eq=False)
class AliasInvalid(BillingError):
    """An alias that means nothing."""

    pattern: str
    reason: str

    def __str__(self) -> str:
        return f"alias {self.pattern!r}: {self.reason}"


@dataclass(eq=False)
class AliasMissing(BillingError):
    """No alias has this pattern."""

    pattern: str

    def __str__(self) -> str:
        return f"no alias {self.pattern!r}"


class ReceiptInvalid(Faulty):
    """A text is no receipt, or no line of a file of receipts."""

    what = "no receipt"


@dataclass(eq=False)
class BundleInvalid(BillingError):
    """A bundle of receipts cannot be read; ``file`` and ``line`` say where, as far as there is a place."""

    reason: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return f"no bundle: {place}: {self.reason}" if place else f"no bundle: {self.reason}"


@dataclass(eq=False)
class ReceiptMissing(BillingError):
    """The log has no receipt of this request for who asks, or no more: it is erased."""

    request_id: str

    def __str__(self) -> str:
        return f"no receipt of {self.request_id!r}"


@dataclass(eq=False)
class ReceiptPending(BillingError):
    """The request is settled, and its receipt will be in the log with the next batch, or the one after it."""

    request_id: str

    def __str__(self) -> str:
        return f"the receipt of {self.request_id!r} is not in the log yet: receipts join it every hour"


@dataclass(eq=False)
class HeadMissing(BillingError):
    """The log has no signed head of this size."""

    size: int

    def __str__(self) -> str:
        return f"the log has no head of size {self.size}"


class ProofBroken(Faulty):
    """Hashes do not prove what they are said to prove."""

    what = "proof broken"


@dataclass(eq=False)
class BalanceExhausted(BillingError):
    """The tenant cannot cover the hold."""

    tenant_id: str

    def __str__(self) -> str:
        return f"tenant {self.tenant_id} has no balance for this request"


class TermsInvalid(Placed):
    """Terms of invoices, a coupon or a billing profile that mean nothing; ``field`` says which part."""


class UsageUnexplained(Faulty):
    """Settled usage that the published prices do not give: a row that vanished, or a charge that differs."""

    what = "usage that the price book does not explain"


class PeriodOpen(Faulty):
    """The period cannot be closed yet."""

    what = "the period cannot be closed"


@dataclass(eq=False)
class DocumentUnprintable(BillingError):
    """No PDF can be made of a document on this machine; ``reason`` is what Typst says."""

    number: str
    reason: str

    def __str__(self) -> str:
        return (
            f"no PDF of {self.number}: {self.reason}; where a character has no font, install one that has it"
            " (on Debian fonts-noto-core and fonts-noto-cjk); HTML and JSON do without"
        )


class InvoiceInvalid(Faulty):
    """A text is no invoice document."""

    what = "no invoice"


@dataclass(eq=False)
class InvoiceMissing(BillingError):
    """No document of this tenant has this number."""

    number: str

    def __str__(self) -> str:
        return f"no invoice {self.number!r}"


class InvoiceConflict(Placed):
    """A document is in another state, or leaves less open than was asked for; terms contradict one.

    ``field`` is its number, or what was to be agreed.
    """


@dataclass(eq=False)
class WebhookRefused(BillingError):
    """A webhook that is not signed by the payment provider, or says nothing readable."""

    reason: str

    def __str__(self) -> str:
        return f"webhook refused: {self.reason}"


@dataclass(eq=False)
class PaymentDeclined(BillingError):
    """The tenant's bank, or its lack of a payment method, refused a payment; ``code`` is the provider's."""

    code: str

    def __str__(self) -> str:
        return f"payment declined: {self.code}"


@dataclass(eq=False)
class PaymentUnknown(BillingError):
    """No payment, customer or event of the provider's has this id."""

    object_id: str

    def __str__(self) -> str:
        return f"no payment, customer or event {self.object_id!r}"


@dataclass(eq=False)
class PaymentRefused(BillingError):
    """The payment provider refuses a request: trying again will not help; ``code`` is the provider's."""

    code: str
    reason: str

    def __str__(self) -> str:
        return f"Stripe refuses this ({self.code}): {self.reason}"


@dataclass(eq=False)
class PaymentUnavailable(BillingError):
    """The payment provider cannot be reached, or could not serve in time. Whether it acted is not known.

    ``answered``: it said so itself, and says it again to the same idempotency key.
    """

    reason: str
    answered: bool = False

    def __str__(self) -> str:
        return f"Stripe is not available: {self.reason}"


@dataclass(eq=False)
class PaymentsMissing(BillingError):
    """No payment provider is configured; ``setting`` would."""

    setting: str

    def __str__(self) -> str:
        return f"no payment provider is configured: set {self.setting} and start the stack anew"


@dataclass(eq=False)
class RolesMissing(BillingError):
    """The database lacks the roles that transactions act as, and we may not make them; ``sql`` does."""

    sql: str

    def __str__(self) -> str:
        return (
            f"Kvitto's roles are missing and this account may not make them; run as a superuser: {self.sql}"
        )


class StoreUnavailable(Faulty):
    """Postgres cannot be reached, or could not serve in time. Whether a commit arrived is not known."""

    what = "database not available"


@dataclass(eq=False)
class StoreRefused(BillingError):
    """Postgres refused a row; ``constraint`` names the rule when it has a name."""

    constraint: str | None
    reason: str

    def __str__(self) -> str:
        return f"database refused the row: {self.reason}"
