"""Billing modes, receivables, refunds, write-offs and corrections; credit that asks to be topped up.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0034"
branch_labels = None
depends_on = None

FEMTO = sa.Numeric(38, 0)
KINDS = {
    "0001": "kind IN ('charge', 'credit', 'expiry')",
    "0040": "kind IN ('charge', 'credit', 'expiry', 'refund', 'write_off', 'correction')",
}
ACCOUNTS = {
    "0001": "account IN ('granted', 'topped_up', 'revenue', 'promotion', 'cash')",
    "0040": (
        "account IN ('granted', 'topped_up', 'receivable',"
        " 'revenue', 'promotion', 'cash', 'breakage', 'bad_debt')"
    ),
}


def upgrade() -> None:
    op.add_column(
        "tenant",
        sa.Column("billing_mode", sa.Text(), server_default=sa.text("'prepaid'"), nullable=False),
    )
    op.add_column(
        "tenant",
        sa.Column("credit_limit", FEMTO, server_default=sa.text("0"), nullable=False, comment="postpaid's"),
    )
    op.create_check_constraint(
        op.f("ck_tenant_billing_mode"), "tenant", "billing_mode IN ('prepaid', 'postpaid')"
    )
    op.create_check_constraint(op.f("ck_tenant_credit_limit"), "tenant", "credit_limit >= 0")
    op.add_column(
        "balance",
        sa.Column("receivable", FEMTO, server_default=sa.text("0"), nullable=False, comment="negative: owed"),
    )
    op.add_column(
        "credit_lot",
        sa.Column(
            "priority",
            sa.SmallInteger(),
            server_default=sa.text("50"),
            nullable=False,
            comment="lower goes first",
        ),
    )
    op.create_check_constraint(op.f("ck_credit_lot_priority"), "credit_lot", "priority BETWEEN 1 AND 100")
    restrict("0040")
    op.create_index(
        "ix_ledger_transaction_movement",
        "ledger_transaction",
        ["tenant_id", "id"],
        postgresql_where=sa.text("kind <> 'charge'"),
    )
    create_top_ups()


def downgrade() -> None:
    op.drop_table("top_up_request")
    op.drop_table("auto_top_up")
    op.drop_index("ix_ledger_transaction_movement", "ledger_transaction")
    restrict("0001")
    op.drop_column("credit_lot", "priority")
    op.drop_column("balance", "receivable")
    op.drop_column("tenant", "credit_limit")
    op.drop_column("tenant", "billing_mode")


def restrict(version: str) -> None:
    op.drop_constraint(op.f("ck_ledger_transaction_kind"), "ledger_transaction")
    op.create_check_constraint(op.f("ck_ledger_transaction_kind"), "ledger_transaction", KINDS[version])
    op.drop_constraint(op.f("ck_ledger_entry_account"), "ledger_entry")
    op.create_check_constraint(op.f("ck_ledger_entry_account"), "ledger_entry", ACCOUNTS[version])


def create_top_ups() -> None:
    op.create_table(
        "auto_top_up",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("threshold", FEMTO, nullable=False),
        sa.Column("amount", FEMTO, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column(
            "armed", sa.Boolean(), nullable=False, comment="not asked since the balance was last above"
        ),
        sa.Column(
            "requested",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="requests so far",
        ),
        sa.CheckConstraint("amount > 0", name=op.f("ck_auto_top_up_amount")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_auto_top_up_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_auto_top_up")),
    )
    op.create_table(
        "top_up_request",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column(
            "number",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="from 1, a crossing each",
        ),
        sa.Column("amount", FEMTO, nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("balance", FEMTO, nullable=False, comment="what could be spent then"),
        sa.Column("balance_version", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount > 0", name=op.f("ck_top_up_request_amount")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["auto_top_up.tenant_id"], name=op.f("fk_top_up_request_tenant_id")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "number", name=op.f("pk_top_up_request")),
    )
