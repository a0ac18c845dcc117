"""Which request has answered an idempotency key.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "idempotency_record",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_digest", sa.LargeBinary(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False, comment="of the path, too"),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status IN ('completed', 'lost')", name=op.f("ck_idempotency_record_status")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_idempotency_record_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "key_digest", name=op.f("pk_idempotency_record")),
    )
    op.create_index(op.f("ix_idempotency_record_expires_at"), "idempotency_record", ["expires_at"])


def downgrade() -> None:
    op.drop_table("idempotency_record")
