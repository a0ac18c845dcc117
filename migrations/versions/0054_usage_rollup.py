"""Usage added up by quarters of an hour.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

from billing.db.access import SETTLER_ROLE
from migrations.protection import close, open_to_all, protect, unprotect

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

KEY = ("tenant_id", "slot", "key_id", "model", "traffic_class", "price_row_id", "price_window")
SUMS = ("requests", "cache_hit", "cache_owed", "cache_write", "cache_miss", "output", "reasoning")


def upgrade() -> None:
    op.create_table(
        "usage_rollup",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column(
            "slot",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="its beginning; of the instant that rated",
        ),
        *(sa.Column(name, sa.Text(), nullable=False) for name in KEY[2:]),
        sa.Column("currency", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in SUMS),
        sa.Column("charge", sa.Numeric(38, 0), nullable=False),
        sa.CheckConstraint("requests > 0", name=op.f("ck_usage_rollup_requests")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_usage_rollup_tenant_id")),
        sa.PrimaryKeyConstraint(*KEY, name=op.f("pk_usage_rollup")),
    )
    op.create_index(op.f("ix_usage_rollup_slot"), "usage_rollup", ["slot"])
    op.create_table(
        "rollup_watermark",
        sa.Column("only", sa.Boolean(), server_default=sa.true(), nullable=False, comment="one row"),
        sa.Column(
            "recorded_before",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="rollups hold just the events before it",
        ),
        sa.CheckConstraint('"only"', name=op.f("ck_rollup_watermark_only")),
        sa.PrimaryKeyConstraint("only", name=op.f("pk_rollup_watermark")),
    )
    op.execute("INSERT INTO rollup_watermark (recorded_before) VALUES ('epoch')")
    protect("usage_rollup", {SETTLER_ROLE: "INSERT, UPDATE"})
    open_to_all("rollup_watermark", {SETTLER_ROLE: "UPDATE"})


def downgrade() -> None:
    close("rollup_watermark")
    unprotect("usage_rollup")
    op.drop_table("rollup_watermark")
    op.drop_table("usage_rollup")
