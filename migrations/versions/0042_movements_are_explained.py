"""No money moves without a reason and an actor. (A charge has both in its usage event.)

One phase: contract.
"""

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_check_constraint(
        op.f("ck_ledger_transaction_explained"),
        "ledger_transaction",
        "kind = 'charge' OR (coalesce(actor, '') <> '' AND coalesce(reason, '') <> '')",
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_ledger_transaction_explained"), "ledger_transaction")
