"""Usage that cannot be, put aside.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage_quarantine",
        sa.Column("request_id", sa.Uuid(), nullable=False, comment="it has no event, and will have none"),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="without a key: it may be what is wrong"),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("attestation", sa.Text(), nullable=True, comment="as its worker signed it"),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_usage_quarantine")),
    )


def downgrade() -> None:
    op.drop_table("usage_quarantine")
