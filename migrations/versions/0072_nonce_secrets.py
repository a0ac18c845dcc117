"""A secret of each tenant that hides its prompts in what workers attest, and opens them to itself.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

revision = "0072"
down_revision = "0071"
branch_labels = None
depends_on = None

# 244 random bits of a cryptographic generator; Postgres has no random bytes without an extension. Written as
# Postgres writes it: Alembic compares the texts.
RANDOM = "sha256((uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))"


def upgrade() -> None:
    op.add_column(
        "tenant",
        sa.Column(
            "nonce_secret",
            sa.LargeBinary(),
            server_default=sa.text(RANDOM),
            comment="hides its prompts in what workers attest; null: erased",
        ),
    )


def downgrade() -> None:
    op.drop_column("tenant", "nonce_secret")
