"""The published price book, and who is on which plan of it."""

from typing import Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Time,
    UniqueConstraint,
)

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

price_plan: Final = Table(
    "price_plan",
    metadata,
    Column("name", Text, primary_key=True),
    Column("created_at", instant(), nullable=False),
    Column("created_by", Text, nullable=False),
    CheckConstraint("name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'", name="name"),
)

tenant_plan: Final = Table(
    "tenant_plan",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("effective_from", instant(), primary_key=True),
    Column("plan", Text, ForeignKey("price_plan.name"), comment="null: on none from here on"),
    Column("placed_at", instant(), nullable=False),
    Column("placed_by", Text, nullable=False),
)

price_row: Final = Table(
    "price_row",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("effective_from", instant(), nullable=False),
    Column("instant", Text, nullable=False),
    Column("standard_name", Text, nullable=False),
    Column("hit", FemtoNumeric, nullable=False),
    Column("miss", FemtoNumeric, nullable=False),
    Column("output", FemtoNumeric, nullable=False),
    Column("write", FemtoNumeric),
    Column("published_at", instant(), nullable=False),
    Column("published_by", Text, nullable=False),
    Column("plan", Text, ForeignKey("price_plan.name"), comment="whose list it is in; null: not a plan's"),
    Column("tenant_id", Text, comment="whose own price it is; null: not a tenant's"),
    Column("effective_until", instant()),
    UniqueConstraint(
        "model", "currency", "effective_from", "plan", "tenant_id", postgresql_nulls_not_distinct=True
    ),
    ForeignKeyConstraint(["tenant_id", "currency"], ["tenant.id", "tenant.currency"]),
    CheckConstraint("plan IS NULL OR tenant_id IS NULL", name="owner"),
    CheckConstraint(
        "effective_until IS NULL"
        " OR (effective_until >= effective_from AND num_nonnulls(plan, tenant_id) = 1)",
        name="ends",
    ),
    CheckConstraint("instant IN ('admitted', 'completed')", name="instant"),
    CheckConstraint("hit >= 0 AND miss >= 0 AND output >= 0 AND write >= 0", name="rates"),
)

price_window: Final = Table(
    "price_window",
    metadata,
    Column("price_row_id", Text, ForeignKey("price_row.id"), primary_key=True),
    Column("position", SmallInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("opens", Time, nullable=False),
    Column("closes", Time, nullable=False),
    Column("tz", Text, nullable=False),
    Column("days", Text, nullable=False, comment="digits of the weekdays, Monday is 0"),
    Column("holidays", Text),
    Column("hit", FemtoNumeric, nullable=False),
    Column("miss", FemtoNumeric, nullable=False),
    Column("output", FemtoNumeric, nullable=False),
    Column("write", FemtoNumeric),
    CheckConstraint("days ~ '^[0-6]+$'", name="days"),
    CheckConstraint("hit >= 0 AND miss >= 0 AND output >= 0 AND write >= 0", name="rates"),
)

price_tier: Final = Table(
    "price_tier",
    metadata,
    Column("price_row_id", Text, ForeignKey("price_row.id"), primary_key=True),
    Column("position", SmallInteger, primary_key=True, comment="of the window; -1: of the row itself"),
    Column("tier", Text, primary_key=True),
    Column("hit", FemtoNumeric, nullable=False),
    Column("miss", FemtoNumeric, nullable=False),
    Column("output", FemtoNumeric, nullable=False),
    Column("write", FemtoNumeric),
    CheckConstraint("tier IN ('flex', 'batch')", name="tier"),
    CheckConstraint("hit >= 0 AND miss >= 0 AND output >= 0 AND write >= 0", name="rates"),
)
