"""Documents that tenants are billed by: written once, settled since.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from billing.db.access import OPERATOR_ROLE, SETTLER_ROLE
from migrations.protection import protect, unprotect

revision = "0082"
down_revision = "0081"
branch_labels = None
depends_on = None

FEMTO = sa.Numeric(38, 0)
OF_PERIOD = "kind IN ('invoice', 'statement')"
SETTLEMENT = "state, paid_cents, credited_cents, settled_at"
WRITERS = {
    "invoice": {
        SETTLER_ROLE: f"INSERT, UPDATE ({SETTLEMENT})",
        OPERATOR_ROLE: "UPDATE (buyer, buyer_nonce)",
    },
    "invoice_line": {SETTLER_ROLE: "INSERT"},
    "invoice_usage": {SETTLER_ROLE: "INSERT"},
    "invoice_payment": {SETTLER_ROLE: "INSERT"},
    "number_series": {SETTLER_ROLE: "INSERT, UPDATE"},
}


def upgrade() -> None:
    create_invoice()
    create_lines()
    create_usage()
    create_payments()
    for table, writers in WRITERS.items():
        protect(table, writers)


def downgrade() -> None:
    for table in reversed(WRITERS):
        unprotect(table)
        op.drop_table(table)


def instant(name: str, comment: str | None = None, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, comment=comment)


def amount(name: str, comment: str | None = None) -> sa.Column:
    return sa.Column(name, FEMTO, server_default=sa.text("0"), nullable=False, comment=comment)


def cents(name: str, comment: str | None = None, *, default: bool = False) -> sa.Column:
    zero = sa.text("0") if default else None
    return sa.Column(name, sa.BigInteger(), server_default=zero, nullable=False, comment=comment)


def words(name: str, comment: str | None = None, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=nullable, comment=comment)


def place(comment: str | None = None) -> sa.Column:
    return sa.Column("position", sa.Integer(), autoincrement=False, nullable=False, comment=comment)


def create_invoice() -> None:
    op.create_table(
        "invoice",
        words("number"),
        words("tenant_id"),
        words("kind"),
        cents("position", "in its series: a tenant's documents of a kind"),
        words("currency"),
        instant("since"),
        instant("until"),
        instant("issued_at"),
        instant("due_at", "null: nothing is due", nullable=True),
        sa.Column("closes_at", sa.BigInteger(), comment="leaves of the log at its head"),
        instant("cut", "of that head: it covers what was recorded before", nullable=True),
        amount("carried_out"),
        amount("corrected", "of corrections"),
        amount("on_account", "applied as credit"),
        cents("total_cents"),
        cents("credits_applied_cents"),
        cents("granted_cents", "of the credits applied"),
        cents("due_cents"),
        words("document", "as signed"),
        sa.Column("buyer", JSONB(), comment="personal: null once erased"),
        sa.Column("buyer_nonce", sa.LargeBinary(), comment="likewise"),
        words("credits", "the document that a credit note credits", nullable=True),
        words("reference", "of the payment that a top-up's document is about", nullable=True),
        sa.Column("transaction_id", sa.Uuid(), comment="of the ledger; null: nothing moved"),
        words("state"),
        cents("paid_cents", default=True),
        cents("credited_cents", "of what was due", default=True),
        instant("settled_at", "when nothing was open any more", nullable=True),
        *(
            sa.CheckConstraint(rule, name=op.f(f"ck_invoice_{name}"))
            for name, rule in {
                "kind": "kind IN ('invoice', 'statement', 'top_up', 'credit_note')",
                "state": "state IN ('finalised', 'paid', 'void', 'uncollectible')",
                "total": "total_cents >= 0 AND due_cents = total_cents - credits_applied_cents",
                "credits_applied": "granted_cents BETWEEN 0 AND credits_applied_cents",
                "settled": (
                    "paid_cents >= 0 AND credited_cents >= 0 AND paid_cents + credited_cents <= due_cents"
                ),
                "period": f"({OF_PERIOD}) = (num_nulls(closes_at, cut) = 0)",
                "credits": "(kind = 'credit_note') = (credits IS NOT NULL)",
            }.items()
        ),
        sa.ForeignKeyConstraint(["credits"], ["invoice.number"], name=op.f("fk_invoice_credits")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_invoice_tenant_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_invoice")),
    )
    for name, columns, unique, where in (
        ("uq_invoice_position", ["tenant_id", "kind", "position"], True, None),
        ("uq_invoice_period", ["tenant_id", "until"], True, OF_PERIOD),
        ("uq_invoice_reference", ["tenant_id", "reference"], True, "reference IS NOT NULL"),
        ("ix_invoice_credits", ["credits"], False, "credits IS NOT NULL"),
        ("ix_invoice_due", ["due_at"], False, "state = 'finalised' AND due_at IS NOT NULL"),
    ):
        only = None if where is None else sa.text(where)
        op.create_index(name, "invoice", columns, unique=unique, postgresql_where=only)


def of_document(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["number"], ["invoice.number"], name=op.f(f"fk_{table}_number"))


def create_lines() -> None:
    op.create_table(
        "invoice_line",
        words("number"),
        place(),
        words("tenant_id", "of its document"),
        words("kind"),
        words("text"),
        cents("cents"),
        words("tax_rate", "a percentage"),
        words("coupon", nullable=True),
        sa.Column("credits", sa.Integer(), comment="position of the line that it credits"),
        of_document("invoice_line"),
        sa.PrimaryKeyConstraint("number", "position", name=op.f("pk_invoice_line")),
    )
    op.create_index(
        "ix_invoice_line_coupon",
        "invoice_line",
        ["tenant_id", "coupon"],
        postgresql_where=sa.text("coupon IS NOT NULL"),
    )


def create_usage() -> None:
    names = ("section", "model", "price_row_id", "price_window", "tier", "bucket")
    op.create_table(
        "invoice_usage",
        words("number"),
        place("that of its line, too"),
        words("tenant_id", "of its document"),
        *(words(name) for name in names),
        cents("requests"),
        cents("tokens"),
        sa.Column("rate", FEMTO, nullable=False),
        sa.Column("amount", FEMTO, nullable=False),
        sa.CheckConstraint("amount = tokens * rate", name=op.f("ck_invoice_usage_amount")),
        sa.CheckConstraint("section IN ('period', 'late')", name=op.f("ck_invoice_usage_section")),
        of_document("invoice_usage"),
        sa.PrimaryKeyConstraint("number", "position", name=op.f("pk_invoice_usage")),
    )


def create_payments() -> None:
    op.create_table(
        "invoice_payment",
        words("number"),
        words("reference", "the payer's, or the provider's: paid once"),
        words("tenant_id", "of its document"),
        cents("cents"),
        words("method"),
        instant("at"),
        words("actor"),
        sa.Column("transaction_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint("cents > 0", name=op.f("ck_invoice_payment_cents")),
        sa.CheckConstraint("reference <> ''", name=op.f("ck_invoice_payment_reference")),
        of_document("invoice_payment"),
        sa.PrimaryKeyConstraint("number", "reference", name=op.f("pk_invoice_payment")),
    )
    op.create_table(
        "number_series",
        words("tenant_id"),
        words("kind"),
        cents("last", "given out: a transaction that fails gives it back"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_number_series_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "kind", name=op.f("pk_number_series")),
    )
