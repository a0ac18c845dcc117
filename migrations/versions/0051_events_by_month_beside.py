"""A table of usage events by month, beside the one that is in use.

One phase: expand.
"""

from alembic import op
from sqlalchemy import text

from billing.db.partitions import DEFAULT, SCHEMA, Month, attach
from migrations.events_by_month import TABLE, create

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """With this month and the next. The job moves those before out of the default partition."""
    op.execute(f"CREATE SCHEMA {SCHEMA}")
    create(TABLE, "usage_event", "PARTITION BY RANGE (request_id)")
    op.execute(f"CREATE TABLE {DEFAULT} PARTITION OF {TABLE} DEFAULT")
    op.execute(f"ALTER TABLE {DEFAULT} ENABLE ROW LEVEL SECURITY")
    month = Month.of(op.get_bind().execute(text("SELECT now()")).scalar_one())
    for statement in (*attach(month, TABLE), *attach(month.next, TABLE)):
        op.execute(statement)


def downgrade() -> None:
    op.execute(f"DROP TABLE {TABLE}")
    op.execute(f"DROP SCHEMA {SCHEMA}")
