"""Rollups are of one tier each. Those that were built are thrown away: the job builds them anew from the
events, and until it has, reports read the events.

One phase: contract.
"""

import sqlalchemy as sa
from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None

KEY = ("tenant_id", "slot", "key_id", "model", "traffic_class", "price_row_id", "price_window")


def upgrade() -> None:
    begin_anew()
    op.add_column("usage_rollup", sa.Column("tier", sa.Text(), nullable=False))
    op.drop_constraint("pk_usage_rollup", "usage_rollup")
    op.create_primary_key("pk_usage_rollup", "usage_rollup", [*KEY, "tier"])


def downgrade() -> None:
    begin_anew()
    op.drop_constraint("pk_usage_rollup", "usage_rollup")
    op.create_primary_key("pk_usage_rollup", "usage_rollup", [*KEY])
    op.drop_column("usage_rollup", "tier")


def begin_anew() -> None:
    """Not a row stays, whoever's: row security has no say in this."""
    op.execute("TRUNCATE usage_rollup")
    op.execute("UPDATE rollup_watermark SET recorded_before = 'epoch'")
