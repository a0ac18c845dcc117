"""Which request has answered an idempotency key: written with its event, or not at all."""

from typing import Final

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, LargeBinary, Table, Text, Uuid

from billing.db.tables.schema import instant, metadata

idempotency_record: Final = Table(
    "idempotency_record",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("key_digest", LargeBinary, primary_key=True),
    Column("body_digest", LargeBinary, nullable=False, comment="of the path, too"),
    Column("request_id", Uuid, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", instant(), nullable=False),
    Column("expires_at", instant(), nullable=False),
    CheckConstraint("status IN ('completed', 'lost')", name="status"),
    Index(None, "expires_at"),
)
