"""Copy usage events to their months.

One phase: backfill.
"""

from alembic import op

from migrations.events_by_month import TABLE, copy

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    copy("usage_event", TABLE)


def downgrade() -> None:
    op.execute(f"TRUNCATE {TABLE}")
