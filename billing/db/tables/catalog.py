"""Further names of served models; the operator's, and no tenant's."""

from typing import Final

from sqlalchemy import CheckConstraint, Column, Table, Text

from billing.db.tables.schema import instant, metadata

model_alias: Final = Table(
    "model_alias",
    metadata,
    Column("pattern", Text, primary_key=True, comment="a name, or the beginning of names and one *"),
    Column("model", Text, nullable=False, comment="the served model that answers"),
    Column("set_at", instant(), nullable=False),
    Column("set_by", Text, nullable=False),
    CheckConstraint("pattern ~ '^[!-)+-~]{1,200}[*]?$'", name="pattern"),
    CheckConstraint("model ~ '^[!-)+-~]{1,200}$'", name="model"),
)
