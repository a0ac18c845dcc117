"""Thresholds of balances, and how far broken promises have been looked at: from now on.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

from billing.db.access import OPERATOR_ROLE, SETTLER_ROLE, TENANT_ROLE
from migrations.protection import close, open_to_all, protect, unprotect

revision = "0099"
down_revision = "0098"
branch_labels = None
depends_on = None

MANAGED = "INSERT, UPDATE, DELETE"


def upgrade() -> None:
    op.create_table(
        "balance_alert",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("threshold", sa.Numeric(38, 0), nullable=False),
        sa.Column(
            "low",
            sa.Boolean(),
            server_default=sa.false(),
            nullable=False,
            comment="told, and not recovered since",
        ),
        sa.Column(
            "occasions", sa.Integer(), server_default=sa.text("0"), nullable=False, comment="told so far"
        ),
        sa.CheckConstraint("threshold >= 0", name=op.f("ck_balance_alert_threshold")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_balance_alert_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_balance_alert")),
    )
    protect("balance_alert", {OPERATOR_ROLE: MANAGED, TENANT_ROLE: MANAGED, SETTLER_ROLE: "UPDATE"})
    op.create_table(
        "promise_watermark",
        sa.Column("only", sa.Boolean(), server_default=sa.true(), nullable=False, comment="one row"),
        sa.Column(
            "recorded_before",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="broken promises before it are told",
        ),
        sa.CheckConstraint('"only"', name=op.f("ck_promise_watermark_only")),
        sa.PrimaryKeyConstraint("only", name=op.f("pk_promise_watermark")),
    )
    op.execute("INSERT INTO promise_watermark (recorded_before) VALUES (date_trunc('hour', now(), 'UTC'))")
    open_to_all("promise_watermark", {SETTLER_ROLE: "UPDATE"})


def downgrade() -> None:
    close("promise_watermark")
    op.drop_table("promise_watermark")
    unprotect("balance_alert")
    op.drop_table("balance_alert")
