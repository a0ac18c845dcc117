"""Usage events are those by month. Attempts lose their foreign key: rows of a partition that is referenced
can neither be moved nor be put away with their month. The check of the ledger finds attempts without event.

One phase: contract.
"""

from alembic import op

from billing.db.access import SETTLER_ROLE
from migrations.events_by_month import TABLE, copy, create, rename
from migrations.protection import protect, unprotect

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None

COMMENT = "of its event, without a key: months move"


def upgrade() -> None:
    op.drop_constraint("fk_usage_attempt_request_id", "usage_attempt")
    op.alter_column("usage_attempt", "request_id", comment=COMMENT)
    op.drop_table("usage_event")
    rename(TABLE, "usage_event")
    protect("usage_event", {SETTLER_ROLE: "INSERT"})


def downgrade() -> None:
    unprotect("usage_event")
    rename("usage_event", TABLE)
    create("usage_event", TABLE, "")
    op.drop_index("ix_usage_event_recorded_at", "usage_event")
    copy(TABLE, "usage_event")
    protect("usage_event", {SETTLER_ROLE: "INSERT"})
    op.alter_column("usage_attempt", "request_id", comment=None, existing_comment=COMMENT)
    op.create_foreign_key(
        "fk_usage_attempt_request_id", "usage_attempt", "usage_event", ["request_id"], ["request_id"]
    )
