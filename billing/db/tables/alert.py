"""What is watched for tenants: thresholds of balances, and how far broken promises have been looked at."""

from typing import Final

from sqlalchemy import Boolean, CheckConstraint, Column, ForeignKey, Integer, Table, Text, false, text, true

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

balance_alert: Final = Table(
    "balance_alert",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("threshold", FemtoNumeric, nullable=False),
    Column("low", Boolean, nullable=False, server_default=false(), comment="told, and not recovered since"),
    Column("occasions", Integer, nullable=False, server_default=text("0"), comment="told so far"),
    CheckConstraint("threshold >= 0", name="threshold"),
)

promise_watermark: Final = Table(
    "promise_watermark",
    metadata,
    Column("only", Boolean, primary_key=True, server_default=true(), comment="one row"),
    Column("recorded_before", instant(), nullable=False, comment="broken promises before it are told"),
    CheckConstraint('"only"', name="only"),
)
