"""Documents that tenants are billed by. What they say is written once; how they are settled moves on.

A finalised document is changed by nobody: only the columns of its settlement are granted, and the buyer's
profile to who erases it. Drafts are derived anew whenever somebody looks, and are not here.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

_NOTHING: Final = text("0")
_OF_PERIOD: Final = "kind IN ('invoice', 'statement')"

invoice: Final = Table(
    "invoice",
    metadata,
    Column("number", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("position", BigInteger, nullable=False, comment="in its series: a tenant's documents of a kind"),
    Column("currency", Text, nullable=False),
    Column("since", instant(), nullable=False),
    Column("until", instant(), nullable=False),
    Column("issued_at", instant(), nullable=False),
    Column("due_at", instant(), comment="null: nothing is due"),
    Column("closes_at", BigInteger, comment="leaves of the log at its head"),
    Column("cut", instant(), comment="of that head: it covers what was recorded before"),
    Column("carried_out", FemtoNumeric, nullable=False, server_default=_NOTHING),
    Column("corrected", FemtoNumeric, nullable=False, server_default=_NOTHING, comment="of corrections"),
    Column("on_account", FemtoNumeric, nullable=False, server_default=_NOTHING, comment="applied as credit"),
    Column("total_cents", BigInteger, nullable=False),
    Column("credits_applied_cents", BigInteger, nullable=False),
    Column("granted_cents", BigInteger, nullable=False, comment="of the credits applied"),
    Column("due_cents", BigInteger, nullable=False),
    Column("document", Text, nullable=False, comment="as signed"),
    Column("buyer", JSONB(none_as_null=True), comment="personal: null once erased"),
    Column("buyer_nonce", LargeBinary, comment="likewise"),
    Column("credits", Text, ForeignKey("invoice.number"), comment="the document that a credit note credits"),
    Column("reference", Text, comment="of the payment that a top-up's document is about"),
    Column("transaction_id", Uuid, comment="of the ledger; null: nothing moved"),
    Column("state", Text, nullable=False),
    Column("paid_cents", BigInteger, nullable=False, server_default=_NOTHING),
    Column("credited_cents", BigInteger, nullable=False, server_default=_NOTHING, comment="of what was due"),
    Column("settled_at", instant(), comment="when nothing was open any more"),
    CheckConstraint("kind IN ('invoice', 'statement', 'top_up', 'credit_note')", name="kind"),
    CheckConstraint("state IN ('finalised', 'paid', 'void', 'uncollectible')", name="state"),
    CheckConstraint("total_cents >= 0 AND due_cents = total_cents - credits_applied_cents", name="total"),
    CheckConstraint("granted_cents BETWEEN 0 AND credits_applied_cents", name="credits_applied"),
    CheckConstraint(
        "paid_cents >= 0 AND credited_cents >= 0 AND paid_cents + credited_cents <= due_cents", name="settled"
    ),
    CheckConstraint(f"({_OF_PERIOD}) = (num_nulls(closes_at, cut) = 0)", name="period"),
    CheckConstraint("(kind = 'credit_note') = (credits IS NOT NULL)", name="credits"),
    Index("uq_invoice_position", "tenant_id", "kind", "position", unique=True),
    Index("uq_invoice_period", "tenant_id", "until", unique=True, postgresql_where=text(_OF_PERIOD)),
    Index(
        "uq_invoice_reference",
        *("tenant_id", "reference"),
        unique=True,
        postgresql_where=text("reference IS NOT NULL"),
    ),
    Index("ix_invoice_credits", "credits", postgresql_where=text("credits IS NOT NULL")),
    Index("ix_invoice_due", "due_at", postgresql_where=text("state = 'finalised' AND due_at IS NOT NULL")),
)

invoice_line: Final = Table(
    "invoice_line",
    metadata,
    Column("number", Text, ForeignKey("invoice.number"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Text, nullable=False, comment="of its document"),
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("cents", BigInteger, nullable=False),
    Column("tax_rate", Text, nullable=False, comment="a percentage"),
    Column("coupon", Text),
    Column("credits", Integer, comment="position of the line that it credits"),
    Index("ix_invoice_line_coupon", "tenant_id", "coupon", postgresql_where=text("coupon IS NOT NULL")),
)

invoice_usage: Final = Table(
    "invoice_usage",
    metadata,
    Column("number", Text, ForeignKey("invoice.number"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False, comment="that of its line, too"),
    Column("tenant_id", Text, nullable=False, comment="of its document"),
    Column("section", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("price_row_id", Text, nullable=False),
    Column("price_window", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("bucket", Text, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("rate", FemtoNumeric, nullable=False),
    Column("amount", FemtoNumeric, nullable=False),
    CheckConstraint("amount = tokens * rate", name="amount"),
    CheckConstraint("section IN ('period', 'late')", name="section"),
)

invoice_payment: Final = Table(
    "invoice_payment",
    metadata,
    Column("number", Text, ForeignKey("invoice.number"), primary_key=True),
    Column("reference", Text, primary_key=True, comment="the payer's, or the provider's: paid once"),
    Column("tenant_id", Text, nullable=False, comment="of its document"),
    Column("cents", BigInteger, nullable=False),
    Column("method", Text, nullable=False),
    Column("at", instant(), nullable=False),
    Column("actor", Text, nullable=False),
    Column("transaction_id", Uuid, nullable=False),
    CheckConstraint("cents > 0", name="cents"),
    CheckConstraint("reference <> ''", name="reference"),
)

number_series: Final = Table(
    "number_series",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("last", BigInteger, nullable=False, comment="given out: a transaction that fails gives it back"),
)
