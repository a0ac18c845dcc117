"""Kinds and accounts of invoices, and an index of the usage that was recorded late.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

revision = "0080"
down_revision = "0072"
branch_labels = None
depends_on = None

KINDS = {
    "0040": "kind IN ('charge', 'credit', 'expiry', 'refund', 'write_off', 'correction')",
    "0080": (
        "kind IN ('charge', 'credit', 'expiry', 'refund', 'write_off', 'correction',"
        " 'invoice', 'payment', 'credit_note', 'uncollectible')"
    ),
}
ACCOUNTS = {
    "0040": (
        "account IN ('granted', 'topped_up', 'receivable',"
        " 'revenue', 'promotion', 'cash', 'breakage', 'bad_debt')"
    ),
    "0080": (
        "account IN ('granted', 'topped_up', 'receivable',"
        " 'revenue', 'promotion', 'cash', 'breakage', 'bad_debt', 'fees', 'discounts', 'tax_payable')"
    ),
}


def upgrade() -> None:
    restrict("0080")
    op.create_index(
        "ix_usage_event_tardy",
        "usage_event",
        ["tenant_id", "recorded_at"],
        postgresql_where=sa.text("recorded_at - rated_at > interval '15 minutes'"),
    )


def downgrade() -> None:
    op.drop_index("ix_usage_event_tardy", "usage_event")
    restrict("0040")


def restrict(version: str) -> None:
    op.drop_constraint(op.f("ck_ledger_transaction_kind"), "ledger_transaction")
    op.create_check_constraint(op.f("ck_ledger_transaction_kind"), "ledger_transaction", KINDS[version])
    op.drop_constraint(op.f("ck_ledger_entry_account"), "ledger_entry")
    op.create_check_constraint(op.f("ck_ledger_entry_account"), "ledger_entry", ACCOUNTS[version])
