"""Tenants are suspended, resumed and erased; what was demanded of who owes.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

from billing.db.access import OPERATOR_ROLE
from migrations.protection import protect, unprotect

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None

# What an erasure removes; notices and endpoints may go already.
ERASED = ("key_secret", "idempotency_record")


def upgrade() -> None:
    for column in (
        sa.Column("suspended_at", sa.DateTime(timezone=True)),
        sa.Column("suspended_by", sa.Text(), comment="who resumes it: an operator, or its payment"),
        sa.Column("suspended_because", sa.Text(), comment="in an operator's words"),
        sa.Column("erased_at", sa.DateTime(timezone=True)),
    ):
        op.add_column("tenant", column)
    op.create_check_constraint(
        op.f("ck_tenant_suspended_by"), "tenant", "suspended_by IN ('operator', 'dunning')"
    )
    op.create_check_constraint(
        op.f("ck_tenant_suspended"),
        "tenant",
        "num_nulls(suspended_at, suspended_by, suspended_because) IN (0, 3)",
    )
    op.create_table(
        "dunning_step",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("document_id", sa.Text(), nullable=False, comment="what is overdue"),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "step IN ('reminder_1', 'reminder_2', 'suspension')", name=op.f("ck_dunning_step_step")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_dunning_step_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "document_id", "step", name=op.f("pk_dunning_step")),
    )
    protect("dunning_step", {OPERATOR_ROLE: "INSERT"})
    for table in ERASED:
        op.execute(f"GRANT DELETE ON {table} TO {OPERATOR_ROLE}")


def downgrade() -> None:
    for table in ERASED:
        op.execute(f"REVOKE DELETE ON {table} FROM {OPERATOR_ROLE}")
    unprotect("dunning_step")
    op.drop_table("dunning_step")
    op.drop_constraint(op.f("ck_tenant_suspended"), "tenant")
    op.drop_constraint(op.f("ck_tenant_suspended_by"), "tenant")
    for column in ("erased_at", "suspended_because", "suspended_by", "suspended_at"):
        op.drop_column("tenant", column)
