"""Further names of served models.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

from billing.db.access import OPERATOR_ROLE
from migrations.protection import close, open_to_all

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "model_alias",
        sa.Column(
            "pattern", sa.Text(), nullable=False, comment="a name, or the beginning of names and one *"
        ),
        sa.Column("model", sa.Text(), nullable=False, comment="the served model that answers"),
        sa.Column("set_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.CheckConstraint("pattern ~ '^[!-)+-~]{1,200}[*]?$'", name=op.f("ck_model_alias_pattern")),
        sa.CheckConstraint("model ~ '^[!-)+-~]{1,200}$'", name=op.f("ck_model_alias_model")),
        sa.PrimaryKeyConstraint("pattern", name=op.f("pk_model_alias")),
    )
    open_to_all("model_alias", {OPERATOR_ROLE: "INSERT, UPDATE, DELETE"})


def downgrade() -> None:
    close("model_alias")
    op.drop_table("model_alias")
