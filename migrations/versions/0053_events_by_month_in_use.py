"""Usage events are those by month.

One phase: contract.
"""

from alembic import op

from billing.db.access import SETTLER_ROLE
from migrations.events_by_month import TABLE, check_references, copy, create, rename
from migrations.protection import protect, unprotect

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("usage_event")
    rename(TABLE, "usage_event")
    check_references("usage_event")
    protect("usage_event", {SETTLER_ROLE: "INSERT"})


def downgrade() -> None:
    unprotect("usage_event")
    op.execute("DROP TRIGGER usage_event_references ON usage_event")
    rename("usage_event", TABLE)
    create("usage_event", TABLE, "")
    op.drop_index("ix_usage_event_recorded_at", "usage_event")
    copy(TABLE, "usage_event")
    protect("usage_event", {SETTLER_ROLE: "INSERT"})
    check_references("usage_event")
