"""Exports that were asked for, and what became of them; the files lie in the deployment's folder."""

from typing import Final

from sqlalchemy import JSON, BigInteger, CheckConstraint, Column, ForeignKey, Index, Integer, Table, Text

from billing.db.tables.schema import instant, metadata

usage_export: Final = Table(
    "usage_export",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), comment="null: an operator's, of all tenants"),
    Column("wanted", JSON, nullable=False, comment="billing.reports.export.order.ExportOrder"),
    Column("created_at", instant(), nullable=False),
    Column("created_by", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempt", Integer, nullable=False, comment="counts who has begun; the last one's file is it"),
    Column("rows", BigInteger),
    Column("size_bytes", BigInteger),
    Column("sha256", Text),
    Column("finished_at", instant()),
    Column("expires_at", instant(), comment="when the file goes"),
    Column("reason", Text, comment="why the last attempt failed"),
    CheckConstraint(
        "status IN ('waiting', 'running', 'done', 'failed', 'expired', 'deleted')", name="status"
    ),
    CheckConstraint(
        "(status = 'done') <= (num_nulls(rows, size_bytes, sha256, expires_at) = 0)", name="done"
    ),
    Index(None, "tenant_id", "created_at", "id"),
)
