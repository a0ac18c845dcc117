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

from billing.errors.base import BillingError, Faulty, Placed
from billing.errors.invoicing import (
    DocumentUnprintable,
    InvoiceConflict,
    InvoiceInvalid,
    InvoiceMissing,
    PeriodOpen,
    TermsInvalid,
    UsageUnexplained,
)
from billing.errors.money import (
    AmountExceeds,
    AmountInvalid,
    BalanceExhausted,
    ChargeUnexplained,
    MovementConflict,
    ReasonMissing,
)
from billing.errors.payments import (
    PaymentDeclined,
    PaymentRefused,
    PaymentsMissing,
    PaymentUnavailable,
    PaymentUnknown,
    WebhookRefused,
)
from billing.errors.pricing import (
    PlanConflict,
    PlanMissing,
    PriceConflict,
    PriceInvalid,
    PriceMissing,
    TierMissing,
    UsageInvalid,
)
from billing.errors.receipts import (
    BundleInvalid,
    HeadMissing,
    ProofBroken,
    ReceiptInvalid,
    ReceiptMissing,
    ReceiptPending,
)
from billing.errors.store import RolesMissing, StoreRefused, StoreUnavailable
from billing.errors.tenancy import (
    AliasInvalid,
    AliasMissing,
    ErasureRefused,
    ExportMissing,
    ExportsBusy,
    IntervalInvalid,
    KeyMissing,
    LimitInvalid,
    LimitMissing,
    NoticeMissing,
    ProjectExists,
    ProjectMissing,
    ReportInvalid,
    TenancyInvalid,
    TenantExists,
    TenantMissing,
    UserExists,
    UserMissing,
    WebhookMissing,
)

__all__ = [
    "AliasInvalid",
    "AliasMissing",
    "AmountExceeds",
    "AmountInvalid",
    "BalanceExhausted",
    "BillingError",
    "BundleInvalid",
    "ChargeUnexplained",
    "DocumentUnprintable",
    "ErasureRefused",
    "ExportMissing",
    "ExportsBusy",
    "Faulty",
    "HeadMissing",
    "IntervalInvalid",
    "InvoiceConflict",
    "InvoiceInvalid",
    "InvoiceMissing",
    "KeyMissing",
    "LimitInvalid",
    "LimitMissing",
    "MovementConflict",
    "NoticeMissing",
    "PaymentDeclined",
    "PaymentRefused",
    "PaymentUnavailable",
    "PaymentUnknown",
    "PaymentsMissing",
    "PeriodOpen",
    "Placed",
    "PlanConflict",
    "PlanMissing",
    "PriceConflict",
    "PriceInvalid",
    "PriceMissing",
    "ProjectExists",
    "ProjectMissing",
    "ProofBroken",
    "ReasonMissing",
    "ReceiptInvalid",
    "ReceiptMissing",
    "ReceiptPending",
    "ReportInvalid",
    "RolesMissing",
    "StoreRefused",
    "StoreUnavailable",
    "TenancyInvalid",
    "TenantExists",
    "TenantMissing",
    "TermsInvalid",
    "TierMissing",
    "UsageInvalid",
    "UsageUnexplained",
    "UserExists",
    "UserMissing",
    "WebhookMissing",
    "WebhookRefused",
]
