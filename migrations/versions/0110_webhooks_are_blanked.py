"""An operator may blank what a payment provider said of a tenant that is erased.

One phase: expand.
"""

from alembic import op

from billing.db.access import OPERATOR_ROLE

revision = "0110"
down_revision = "0101"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(f"GRANT UPDATE (body) ON payment_inbox TO {OPERATOR_ROLE}")


def downgrade() -> None:
    op.execute(f"REVOKE UPDATE (body) ON payment_inbox FROM {OPERATOR_ROLE}")
