"""Credit that is to be paid for by itself: the rule of a tenant, and what it asked for."""

from typing import Final

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, ForeignKey, Integer, Table, Text, text

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

auto_top_up: Final = Table(
    "auto_top_up",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("threshold", FemtoNumeric, nullable=False),
    Column("amount", FemtoNumeric, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("armed", Boolean, nullable=False, comment="not asked since the balance was last above"),
    Column("requested", Integer, nullable=False, server_default=text("0"), comment="requests so far"),
    Column("declines", Integer, nullable=False, server_default=text("0"), comment="payments, in a row"),
    Column("retry_at", instant(), comment="when to ask again after a decline"),
    CheckConstraint("amount > 0", name="amount"),
)

top_up_request: Final = Table(
    "top_up_request",
    metadata,
    Column("tenant_id", Text, ForeignKey("auto_top_up.tenant_id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False, comment="from 1, a crossing each"),
    Column("amount", FemtoNumeric, nullable=False),
    Column("requested_at", instant(), nullable=False),
    Column("balance", FemtoNumeric, nullable=False, comment="what could be spent then"),
    Column("balance_version", BigInteger, nullable=False),
    CheckConstraint("amount > 0", name="amount"),
)
