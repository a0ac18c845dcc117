"""What was demanded of tenants that owe. Rows are appended and never edited."""

from typing import Final

from sqlalchemy import CheckConstraint, Column, ForeignKey, Table, Text

from billing.db.tables.schema import instant, metadata

dunning_step: Final = Table(
    "dunning_step",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("document_id", Text, primary_key=True, comment="what is overdue"),
    Column("step", Text, primary_key=True),
    Column("at", instant(), nullable=False),
    CheckConstraint("step IN ('reminder_1', 'reminder_2', 'suspension')", name="step"),
)
