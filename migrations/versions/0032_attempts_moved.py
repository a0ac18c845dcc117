"""Move the attempts into their events' rows.

One phase: backfill.
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        UPDATE usage_event SET attempts = coalesce(
            (SELECT json_agg(json_build_array(attempt, stage, worker, output_from, output_to)
                             ORDER BY attempt)
             FROM usage_attempt WHERE usage_attempt.request_id = usage_event.request_id),
            '[]'
        )
        WHERE attempts IS NULL
    """)


def downgrade() -> None:
    op.execute("""
        INSERT INTO usage_attempt (request_id, attempt, tenant_id, stage, worker, output_from, output_to)
        SELECT request_id, (kept.call ->> 0)::integer, tenant_id, kept.call ->> 1, kept.call ->> 2,
            (kept.call ->> 3)::integer, (kept.call ->> 4)::integer
        FROM usage_event, json_array_elements(attempts) AS kept (call)
        ON CONFLICT DO NOTHING
    """)
