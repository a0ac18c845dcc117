"""What requests used, and the calls that are billed for it.

Keys, tenants with their currency and price rows that events name exist: a trigger looks once a statement
(`usage_event_references`), where a foreign key would once a row.
"""

from typing import Final

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    Index,
    Integer,
    Table,
    Text,
    Uuid,
    func,
    text,
)

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

usage_event: Final = Table(
    "usage_event",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("traffic_class", Text, nullable=False),
    Column("admitted_at", instant(), nullable=False),
    Column("rated_at", instant(), nullable=False),
    Column("cache_hit", Integer, nullable=False),
    Column("cache_owed", Integer, nullable=False),
    Column("cache_write", Integer, nullable=False),
    Column("cache_miss", Integer, nullable=False),
    Column("output", Integer, nullable=False),
    Column("reasoning", Integer, nullable=False),
    Column("charge", FemtoNumeric, nullable=False),
    Column("currency", Text, nullable=False),
    Column("price_row_id", Text, nullable=False),
    Column("price_window", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column(
        "attempts",
        JSON,
        nullable=False,
        comment="accepted calls, each [attempt, stage, worker, output_from, output_to]",
    ),
    Column("recorded_at", instant(), nullable=False, server_default=func.now()),
    CheckConstraint("status IN ('completed', 'aborted', 'failed')", name="status"),
    CheckConstraint(
        "cache_hit >= 0 AND cache_owed >= 0 AND cache_write >= 0 AND cache_miss >= 0 AND output >= 0",
        name="counts",
    ),
    CheckConstraint("cache_hit + cache_owed = 0 OR cache_write + cache_miss > 0", name="one_computed"),
    CheckConstraint("reasoning BETWEEN 0 AND output", name="reasoning"),
    CheckConstraint("charge >= 0", name="charge"),
    CheckConstraint("tier IN ('standard', 'flex', 'batch')", name="tier"),
    Index(None, "tenant_id", "rated_at", "request_id"),
    Index(None, "rated_at", "request_id"),
    # Without autosummarize it would know nothing of what was inserted since the last vacuum.
    Index(None, "recorded_at", postgresql_using="brin", postgresql_with={"autosummarize": "on"}),
    # What was recorded long after it was rated: few rows, among which invoices find those of earlier periods.
    Index(
        "ix_usage_event_tardy",
        *("tenant_id", "recorded_at"),
        postgresql_where=text("recorded_at - rated_at > interval '15 minutes'"),
    ),
    postgresql_partition_by="RANGE (request_id)",  # by month: billing/db/partitions.py
)
