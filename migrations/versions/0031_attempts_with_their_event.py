"""Room for the attempts of an event in its own row: nobody looks for one without the other.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "usage_event",
        sa.Column(
            "attempts",
            sa.JSON(),
            nullable=True,
            comment="accepted calls, each [attempt, stage, worker, output_from, output_to]",
        ),
    )


def downgrade() -> None:
    op.drop_column("usage_event", "attempts")
