"""The attempts of an event, and room for attestations that come before or without their event.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage_attempt",
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="of its event"),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("output_from", sa.Integer(), nullable=False),
        sa.Column("output_to", sa.Integer(), nullable=False),
        sa.CheckConstraint("attempt >= 0", name=op.f("ck_usage_attempt_attempt")),
        sa.CheckConstraint("stage IN ('prefill', 'decode', 'both')", name=op.f("ck_usage_attempt_stage")),
        sa.CheckConstraint(
            "0 <= output_from AND output_from <= output_to", name=op.f("ck_usage_attempt_output")
        ),
        sa.ForeignKeyConstraint(
            ["request_id"], ["usage_event.request_id"], name=op.f("fk_usage_attempt_request_id")
        ),
        sa.PrimaryKeyConstraint("request_id", "attempt", name=op.f("pk_usage_attempt")),
    )
    op.drop_constraint(op.f("fk_attestation_request_id"), "attestation")
    # Those who know no more than positions write on; those who know attempts need not name a position.
    op.drop_constraint(op.f("pk_attestation"), "attestation")
    op.alter_column("attestation", "position", nullable=True)
    op.alter_column("attestation", "tenant_id", nullable=True)
    op.add_column("attestation", sa.Column("attempt", sa.Integer(), nullable=True))
    op.add_column("attestation", sa.Column("kind", sa.Text(), nullable=True))
    op.add_column("attestation", sa.Column("worker", sa.Text(), nullable=True))
    op.add_column(
        "attestation",
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
    )
    op.create_check_constraint(op.f("ck_attestation_attempt"), "attestation", "attempt >= 0")
    op.create_check_constraint(op.f("ck_attestation_kind"), "attestation", "kind IN ('prefill', 'decode')")
    op.create_index("uq_attestation_call", "attestation", ["request_id", "attempt", "kind"], unique=True)


def downgrade() -> None:
    """Back to what one position a request can say: attestations without their event are lost."""
    op.drop_index("uq_attestation_call", "attestation")
    op.execute("DELETE FROM attestation WHERE request_id NOT IN (SELECT request_id FROM usage_event)")
    op.execute("""
        UPDATE attestation a SET position = numbered.position, tenant_id = numbered.tenant_id
        FROM (
            SELECT a.ctid AS row, e.tenant_id,
                row_number() OVER (PARTITION BY a.request_id ORDER BY a.attempt, a.kind DESC) - 1 AS position
            FROM attestation a JOIN usage_event e USING (request_id)
        ) numbered
        WHERE a.ctid = numbered.row
    """)
    for column in ("recorded_at", "worker", "kind", "attempt"):
        op.drop_column("attestation", column)
    op.alter_column("attestation", "tenant_id", nullable=False)
    op.alter_column("attestation", "position", nullable=False)
    op.create_primary_key(op.f("pk_attestation"), "attestation", ["request_id", "position"])
    op.create_foreign_key(
        op.f("fk_attestation_request_id"), "attestation", "usage_event", ["request_id"], ["request_id"]
    )
    op.drop_table("usage_attempt")
