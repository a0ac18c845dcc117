"""A key belongs to a project and has its digests elsewhere.

One phase: contract.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

FILLED = ("project_id", "scopes", "traffic_classes")


def upgrade() -> None:
    for column in FILLED:
        op.alter_column("api_key", column, nullable=False)
    op.create_foreign_key(
        op.f("fk_api_key_project_id_tenant_id"),
        "api_key",
        "project",
        ["project_id", "tenant_id"],
        ["id", "tenant_id"],
    )
    op.drop_column("api_key", "digest")  # with its two constraints
    op.drop_column("api_key", "prefix")


def downgrade() -> None:
    op.add_column("api_key", sa.Column("prefix", sa.Text(), nullable=True))
    op.add_column("api_key", sa.Column("digest", sa.LargeBinary(), nullable=True))
    op.create_check_constraint(op.f("ck_api_key_digest"), "api_key", "octet_length(digest) = 32")
    op.create_unique_constraint(op.f("uq_api_key_digest"), "api_key", ["digest"])
    op.drop_constraint(op.f("fk_api_key_project_id_tenant_id"), "api_key")
    for column in FILLED:
        op.alter_column("api_key", column, nullable=True)
