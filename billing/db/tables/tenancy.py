"""Who may ask and who pays."""

from typing import Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

tenant: Final = Table(
    "tenant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("currency", Text, nullable=False),
    Column("created_at", instant(), nullable=False),
    Column("billing_mode", Text, nullable=False, server_default=text("'prepaid'")),
    Column("credit_limit", FemtoNumeric, nullable=False, server_default=text("0"), comment="postpaid's"),
    UniqueConstraint("id", "currency"),
    CheckConstraint("name <> ''", name="named"),
    CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency"),
    CheckConstraint("billing_mode IN ('prepaid', 'postpaid')", name="billing_mode"),
    CheckConstraint("credit_limit >= 0", name="credit_limit"),
)

api_key: Final = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("created_at", instant(), nullable=False),
    Column("revoked_at", instant()),
    UniqueConstraint("id", "tenant_id"),
    CheckConstraint("octet_length(digest) = 32", name="digest"),
    Index(None, "tenant_id"),
)
