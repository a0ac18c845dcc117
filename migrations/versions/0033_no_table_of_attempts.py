"""Attempts are in their event's row alone.

One phase: contract.
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("usage_event", "attempts", nullable=False)
    op.drop_table("usage_attempt")


def downgrade() -> None:
    op.alter_column("usage_event", "attempts", nullable=True)
    op.create_table(
        "usage_attempt",
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="of its event"),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("output_from", sa.Integer(), nullable=False),
        sa.Column("output_to", sa.Integer(), nullable=False),
        sa.CheckConstraint("attempt >= 0", name=op.f("ck_usage_attempt_attempt")),
        sa.CheckConstraint("stage IN ('prefill', 'decode', 'both')", name=op.f("ck_usage_attempt_stage")),
        sa.CheckConstraint(
            "0 <= output_from AND output_from <= output_to", name=op.f("ck_usage_attempt_output")
        ),
        sa.PrimaryKeyConstraint("request_id", "attempt", name=op.f("pk_usage_attempt")),
    )
