"""Name the call of each attestation kept so far: all are of prefills, accepted by their gateway.

One phase: backfill.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        UPDATE attestation
        SET attempt = coalesce((document::jsonb #>> '{payload,attempt}')::integer, position),
            kind = 'prefill',
            worker = coalesce(document::jsonb #>> '{payload,worker}', '')
        WHERE attempt IS NULL
    """)


def downgrade() -> None:
    """Nothing: what was filled in is dropped with its columns."""
