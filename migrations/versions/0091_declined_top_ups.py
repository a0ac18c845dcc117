"""Rules whose payment was declined ask again later.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

revision = "0091"
down_revision = "0090"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "auto_top_up",
        sa.Column(
            "declines",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="payments, in a row",
        ),
    )
    op.add_column(
        "auto_top_up",
        sa.Column(
            "retry_at", sa.DateTime(timezone=True), nullable=True, comment="when to ask again after a decline"
        ),
    )


def downgrade() -> None:
    op.drop_column("auto_top_up", "retry_at")
    op.drop_column("auto_top_up", "declines")
