"""An attestation is named by its request, attempt and kind alone.

One phase: contract.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

CALL = ["request_id", "attempt", "kind"]


def upgrade() -> None:
    for column in ("attempt", "kind", "worker"):
        op.alter_column("attestation", column, nullable=False)
    op.drop_index("uq_attestation_call", "attestation")
    op.create_primary_key(op.f("pk_attestation"), "attestation", CALL)
    op.drop_column("attestation", "position")
    op.alter_column("attestation", "request_id", comment="its event may come later, or never")
    op.alter_column(
        "attestation",
        "tenant_id",
        comment="of its memo, when that names one",
        existing_comment="of its event",
    )


def downgrade() -> None:
    op.alter_column(
        "attestation",
        "tenant_id",
        comment="of its event",
        existing_comment="of its memo, when that names one",
    )
    op.alter_column(
        "attestation", "request_id", comment=None, existing_comment="its event may come later, or never"
    )
    op.add_column("attestation", sa.Column("position", sa.SmallInteger(), nullable=True))
    op.drop_constraint(op.f("pk_attestation"), "attestation")
    op.create_index("uq_attestation_call", "attestation", CALL, unique=True)
    for column in ("attempt", "kind", "worker"):
        op.alter_column("attestation", column, nullable=True)
