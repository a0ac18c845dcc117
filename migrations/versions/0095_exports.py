"""Exports made in the background.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

from billing.db.access import OPERATOR_ROLE, SETTLER_ROLE, TENANT_ROLE
from migrations.protection import protect, unprotect

revision = "0095"
down_revision = "0091"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "usage_export",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), comment="null: an operator's, of all tenants"),
        sa.Column("wanted", sa.JSON(), nullable=False, comment="billing.reports.export.order.ExportOrder"),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column(
            "attempt", sa.Integer(), nullable=False, comment="counts who has begun; the last one's file is it"
        ),
        sa.Column("rows", sa.BigInteger()),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.Column("sha256", sa.Text()),
        sa.Column("finished_at", INSTANT),
        sa.Column("expires_at", INSTANT, comment="when the file goes"),
        sa.Column("reason", sa.Text(), comment="why the last attempt failed"),
        sa.CheckConstraint(
            "status IN ('waiting', 'running', 'done', 'failed', 'expired', 'deleted')",
            name=op.f("ck_usage_export_status"),
        ),
        sa.CheckConstraint(
            "(status = 'done') <= (num_nulls(rows, size_bytes, sha256, expires_at) = 0)",
            name=op.f("ck_usage_export_done"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_usage_export_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_export")),
    )
    op.create_index(
        op.f("ix_usage_export_tenant_id_created_at_id"), "usage_export", ["tenant_id", "created_at", "id"]
    )
    protect(
        "usage_export",
        {TENANT_ROLE: "INSERT, UPDATE", OPERATOR_ROLE: "INSERT, UPDATE", SETTLER_ROLE: "UPDATE"},
    )


def downgrade() -> None:
    unprotect("usage_export")
    op.drop_table("usage_export")
