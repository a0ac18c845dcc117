"""The published price book."""

from typing import Final

from sqlalchemy import CheckConstraint, Column, ForeignKey, SmallInteger, Table, Text, Time, UniqueConstraint

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

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
    UniqueConstraint("model", "currency", "effective_from"),
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
