"""Certificates of the keys that sign attestations.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

from billing.db.access import SETTLER_ROLE
from migrations.protection import close, open_to_all

revision = "0070"
down_revision = "0061"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "worker_certificate",
        sa.Column(
            "key_id", sa.Text(), nullable=False, comment="of the worker's key, as its attestations name it"
        ),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False, comment="as the deployment signed it"),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_worker_certificate")),
    )
    open_to_all("worker_certificate", {SETTLER_ROLE: "INSERT"})


def downgrade() -> None:
    close("worker_certificate")
    op.drop_table("worker_certificate")
