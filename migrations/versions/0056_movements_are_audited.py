"""Who moves money records it in the audit log, in the transaction that moves it.

One phase: expand.
"""

from alembic import op

from billing.db.access import SETTLER_ROLE

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(f"GRANT INSERT ON audit_event TO {SETTLER_ROLE}")
    op.execute(f"GRANT INSERT, UPDATE ON audit_head TO {SETTLER_ROLE}")


def downgrade() -> None:
    op.execute(f"REVOKE INSERT, UPDATE ON audit_head FROM {SETTLER_ROLE}")
    op.execute(f"REVOKE INSERT ON audit_event FROM {SETTLER_ROLE}")
