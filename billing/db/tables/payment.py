"""Money by way of a payment provider: whom it knows, what it said, what came of it, what to tell it."""

from typing import Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    text,
)

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

payment_customer: Final = Table(
    "payment_customer",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("customer_id", Text, nullable=False, unique=True, comment="the provider's"),
    Column("linked_at", instant(), nullable=False),
    Column("method", Text, comment="the provider's, that is used when nobody chooses"),
    Column("deleted", Text, comment="the provider's event that said so"),
    Column("fact_at", instant(), comment="of the newest fact, by the provider's clock"),
    Column("fact", Text),
)

payment: Final = Table(
    "payment",
    metadata,
    Column("id", Text, primary_key=True, comment="the provider's"),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("parent", Text, comment="of a refund or a dispute: its payment"),
    Column("amount", FemtoNumeric, nullable=False),
    Column("status", Text, nullable=False, comment="in the provider's words"),
    Column("reason", Text, comment="why it failed, or is disputed"),
    Column("order_id", Text, comment="of ours, that it answers"),
    Column("created_at", instant(), nullable=False, comment="by the provider's clock"),
    Column("fact_at", instant(), nullable=False, comment="of the newest fact, likewise"),
    Column("fact", Text, nullable=False),
    Column("legs", SmallInteger, nullable=False, server_default=text("0"), comment="times money was moved"),
    CheckConstraint("kind IN ('payment', 'refund', 'dispute', 'invoice')", name="kind"),
    CheckConstraint("(kind IN ('refund', 'dispute')) = (parent IS NOT NULL)", name="parent"),
    CheckConstraint("amount >= 0", name="amount"),
    CheckConstraint("legs >= 0", name="legs"),
    Index("ix_payment_tenant_id", "tenant_id", "created_at"),
    Index("ix_payment_parent", "parent", postgresql_where=text("parent IS NOT NULL")),
)

payment_inbox: Final = Table(
    "payment_inbox",
    metadata,
    Column("id", Text, primary_key=True, comment="the provider's, of the event"),
    Column("tenant_id", Text, ForeignKey("tenant.id"), comment="null: nobody's that we know"),
    Column("object_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("created_at", instant(), nullable=False, comment="by the provider's clock"),
    Column("received_at", instant(), nullable=False),
    Column("body", LargeBinary, nullable=False, comment="as signed"),
    Column("outcome", Text, nullable=False),
    Column("reason", Text),
    Column("waits_for", Text, comment="the object that must become known first"),
    Column("applied_at", instant()),
    CheckConstraint("outcome IN ('applied', 'ignored', 'waiting')", name="outcome"),
    CheckConstraint("(outcome = 'applied') = (applied_at IS NOT NULL)", name="applied"),
    CheckConstraint("(outcome = 'waiting') = (waits_for IS NOT NULL)", name="waits_for"),
    Index("ix_payment_inbox_object_id", "object_id"),
    Index("ix_payment_inbox_waits_for", "waits_for", postgresql_where=text("waits_for IS NOT NULL")),
    Index("ix_payment_inbox_tenant_id", "tenant_id", "created_at"),
)

payment_outbox: Final = Table(
    "payment_outbox",
    metadata,
    Column("id", Text, primary_key=True, comment="kind, tenant and key: asked for again it is the same"),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False, comment="JSON"),
    Column("created_at", instant(), nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("spent", SmallInteger, nullable=False, server_default=text("0"), comment="keys that failed"),
    Column("first_sent_at", instant()),
    Column("due_at", instant(), comment="null: nothing is left to do"),
    Column("outcome", Text, nullable=False, server_default=text("'open'")),
    Column("object_id", Text, comment="the provider's, that answers it"),
    Column("reason", Text, comment="of the last failure"),
    CheckConstraint("kind IN ('top_up', 'refund', 'invoice', 'meter')", name="kind"),
    CheckConstraint("outcome IN ('open', 'done', 'failed')", name="outcome"),
    CheckConstraint("(outcome = 'open') = (due_at IS NOT NULL)", name="due_at"),
    CheckConstraint("attempts >= 0", name="attempts"),
    Index("ix_payment_outbox_due_at", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    Index("ix_payment_outbox_tenant_id", "tenant_id", "created_at"),
)
