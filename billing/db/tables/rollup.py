"""Usage added up by slots of a quarter of an hour: projections of the events."""

from typing import Final

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, ForeignKey, Index, Table, Text, true

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

usage_rollup: Final = Table(
    "usage_rollup",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("slot", instant(), primary_key=True, comment="its beginning; of the instant that rated"),
    Column("key_id", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("traffic_class", Text, primary_key=True),
    Column("price_row_id", Text, primary_key=True),
    Column("price_window", Text, primary_key=True),
    Column("tier", Text, primary_key=True),
    Column("currency", Text, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("cache_hit", BigInteger, nullable=False),
    Column("cache_owed", BigInteger, nullable=False),
    Column("cache_write", BigInteger, nullable=False),
    Column("cache_miss", BigInteger, nullable=False),
    Column("output", BigInteger, nullable=False),
    Column("reasoning", BigInteger, nullable=False),
    Column("charge", FemtoNumeric, nullable=False),
    CheckConstraint("requests > 0", name="requests"),
    Index(None, "slot"),
)

rollup_watermark: Final = Table(
    "rollup_watermark",
    metadata,
    Column("only", Boolean, primary_key=True, server_default=true(), comment="one row"),
    Column("recorded_before", instant(), nullable=False, comment="rollups hold just the events before it"),
    CheckConstraint('"only"', name="only"),
)
