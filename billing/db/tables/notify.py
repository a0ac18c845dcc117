"""What tenants are told, where they want to be told it, and what became of telling them."""

from typing import Final

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from billing.db.tables.schema import instant, metadata

notice: Final = Table(
    "notice",
    metadata,
    Column("id", Text, primary_key=True, comment="in the order of their instants"),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("at", instant(), nullable=False),
    Column("facts", JSONB, nullable=False),
    Column("dedupe", Text, comment="names the occasion, once a tenant"),
    UniqueConstraint("id", "tenant_id"),
    UniqueConstraint("tenant_id", "dedupe"),
    CheckConstraint("kind ~ '^[a-z]+[.][a-z_]+$'", name="kind"),
    Index(None, "tenant_id", "id"),
)

webhook_endpoint: Final = Table(
    "webhook_endpoint",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("url", Text, nullable=False),
    Column("kinds", ARRAY(Text), comment="null: all"),
    Column("enabled", Boolean, nullable=False, server_default=true()),
    Column("disabled_for", Text, comment="why, where it was not its tenant"),
    Column("failing_since", instant(), comment="null: the last attempt was taken"),
    Column("created_at", instant(), nullable=False),
    UniqueConstraint("id", "tenant_id"),
    CheckConstraint("url <> ''", name="url"),
    CheckConstraint("kinds <> '{}'", name="kinds"),
    Index(None, "tenant_id"),
)

webhook_secret: Final = Table(
    "webhook_secret",
    metadata,
    Column("id", Text, primary_key=True, comment="what the sealed secret is bound to"),
    Column("tenant_id", Text, nullable=False, comment="of its endpoint"),
    Column("endpoint_id", Text, nullable=False),
    Column("sealed", Text, nullable=False, comment="encrypted under a secret of the deployment"),
    Column("created_at", instant(), nullable=False),
    Column("ends_at", instant(), comment="null: the endpoint's present secret"),
    ForeignKeyConstraint(
        ["endpoint_id", "tenant_id"],
        ["webhook_endpoint.id", "webhook_endpoint.tenant_id"],
        ondelete="CASCADE",
    ),
    Index("uq_webhook_secret_present", "endpoint_id", unique=True, postgresql_where=text("ends_at IS NULL")),
    Index(None, "endpoint_id"),
)

webhook_delivery: Final = Table(
    "webhook_delivery",
    metadata,
    Column("notice_id", Text, primary_key=True),
    Column("endpoint_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False, comment="of both"),
    Column("state", Text, nullable=False, server_default=text("'pending'")),
    Column("due_at", instant(), nullable=False, comment="of the next attempt; of the last one, once settled"),
    Column("tries", Integer, nullable=False, server_default=text("0"), comment="since it was last wanted"),
    Column("attempts", Integer, nullable=False, server_default=text("0"), comment="in all"),
    ForeignKeyConstraint(["notice_id", "tenant_id"], ["notice.id", "notice.tenant_id"], ondelete="CASCADE"),
    ForeignKeyConstraint(
        ["endpoint_id", "tenant_id"],
        ["webhook_endpoint.id", "webhook_endpoint.tenant_id"],
        ondelete="CASCADE",
    ),
    CheckConstraint("state IN ('pending', 'delivered', 'given_up')", name="state"),
    Index("ix_webhook_delivery_due", "due_at", postgresql_where=text("state = 'pending'")),
    Index(None, "endpoint_id", "notice_id"),
)

webhook_attempt: Final = Table(
    "webhook_attempt",
    metadata,
    Column("notice_id", Text, primary_key=True),
    Column("endpoint_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False, comment="from 1"),
    Column("tenant_id", Text, nullable=False, comment="of its delivery"),
    Column("at", instant(), nullable=False),
    Column("duration_ms", Integer, nullable=False),
    Column("status", Integer, comment="of the answer; null: there was none"),
    Column("error", Text, comment="null: it was delivered"),
    ForeignKeyConstraint(
        ["notice_id", "endpoint_id"],
        ["webhook_delivery.notice_id", "webhook_delivery.endpoint_id"],
        ondelete="CASCADE",
    ),
    CheckConstraint("number > 0", name="number"),
    CheckConstraint("length(error) <= 500", name="error"),
)
