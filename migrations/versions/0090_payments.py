"""Payments: customers, the provider's objects, what it said and what it is to be told.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

from billing.db.access import SETTLER_ROLE
from migrations.protection import protect, unprotect

revision = "0090"
down_revision = "0082"
branch_labels = None
depends_on = None

FEMTO = sa.Numeric(38, 0)
TABLES = ("payment_customer", "payment", "payment_inbox", "payment_outbox")


def upgrade() -> None:
    create_customers()
    create_payments()
    create_inbox()
    create_outbox()
    for table in TABLES:
        protect(table, {SETTLER_ROLE: "INSERT, UPDATE"})


def downgrade() -> None:
    for table in reversed(TABLES):
        unprotect(table)
        op.drop_table(table)


def instant() -> sa.DateTime:
    return sa.DateTime(timezone=True)


def of_tenant(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f(f"fk_{table}_tenant_id"))


def create_customers() -> None:
    op.create_table(
        "payment_customer",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("customer_id", sa.Text(), nullable=False, comment="the provider's"),
        sa.Column("linked_at", instant(), nullable=False),
        sa.Column(
            "method", sa.Text(), nullable=True, comment="the provider's, that is used when nobody chooses"
        ),
        sa.Column("deleted", sa.Text(), nullable=True, comment="the provider's event that said so"),
        sa.Column("fact_at", instant(), nullable=True, comment="of the newest fact, by the provider's clock"),
        sa.Column("fact", sa.Text(), nullable=True),
        of_tenant("payment_customer"),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_payment_customer")),
        sa.UniqueConstraint("customer_id", name=op.f("uq_payment_customer_customer_id")),
    )


def create_payments() -> None:
    op.create_table(
        "payment",
        sa.Column("id", sa.Text(), nullable=False, comment="the provider's"),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=True, comment="of a refund or a dispute: its payment"),
        sa.Column("amount", FEMTO, nullable=False),
        sa.Column("status", sa.Text(), nullable=False, comment="in the provider's words"),
        sa.Column("reason", sa.Text(), nullable=True, comment="why it failed, or is disputed"),
        sa.Column("order_id", sa.Text(), nullable=True, comment="of ours, that it answers"),
        sa.Column("created_at", instant(), nullable=False, comment="by the provider's clock"),
        sa.Column("fact_at", instant(), nullable=False, comment="of the newest fact, likewise"),
        sa.Column("fact", sa.Text(), nullable=False),
        sa.Column(
            "legs",
            sa.SmallInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="times money was moved",
        ),
        sa.CheckConstraint(
            "kind IN ('payment', 'refund', 'dispute', 'invoice')", name=op.f("ck_payment_kind")
        ),
        sa.CheckConstraint(
            "(kind IN ('refund', 'dispute')) = (parent IS NOT NULL)", name=op.f("ck_payment_parent")
        ),
        sa.CheckConstraint("amount >= 0", name=op.f("ck_payment_amount")),
        sa.CheckConstraint("legs >= 0", name=op.f("ck_payment_legs")),
        of_tenant("payment"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_payment")),
    )
    op.create_index("ix_payment_tenant_id", "payment", ["tenant_id", "created_at"])
    op.create_index(
        "ix_payment_parent", "payment", ["parent"], postgresql_where=sa.text("parent IS NOT NULL")
    )


def create_inbox() -> None:
    op.create_table(
        "payment_inbox",
        sa.Column("id", sa.Text(), nullable=False, comment="the provider's, of the event"),
        sa.Column("tenant_id", sa.Text(), nullable=True, comment="null: nobody's that we know"),
        sa.Column("object_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("created_at", instant(), nullable=False, comment="by the provider's clock"),
        sa.Column("received_at", instant(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False, comment="as signed"),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("waits_for", sa.Text(), nullable=True, comment="the object that must become known first"),
        sa.Column("applied_at", instant(), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('applied', 'ignored', 'waiting')", name=op.f("ck_payment_inbox_outcome")
        ),
        sa.CheckConstraint(
            "(outcome = 'applied') = (applied_at IS NOT NULL)", name=op.f("ck_payment_inbox_applied")
        ),
        sa.CheckConstraint(
            "(outcome = 'waiting') = (waits_for IS NOT NULL)", name=op.f("ck_payment_inbox_waits_for")
        ),
        of_tenant("payment_inbox"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_payment_inbox")),
    )
    op.create_index("ix_payment_inbox_object_id", "payment_inbox", ["object_id"])
    op.create_index(
        "ix_payment_inbox_waits_for",
        "payment_inbox",
        ["waits_for"],
        postgresql_where=sa.text("waits_for IS NOT NULL"),
    )
    op.create_index("ix_payment_inbox_tenant_id", "payment_inbox", ["tenant_id", "created_at"])


def create_outbox() -> None:
    op.create_table(
        "payment_outbox",
        sa.Column(
            "id", sa.Text(), nullable=False, comment="kind, tenant and key: asked for again it is the same"
        ),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("created_at", instant(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "spent",
            sa.SmallInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="keys that failed",
        ),
        sa.Column("first_sent_at", instant(), nullable=True),
        sa.Column("due_at", instant(), nullable=True, comment="null: nothing is left to do"),
        sa.Column("outcome", sa.Text(), server_default=sa.text("'open'"), nullable=False),
        sa.Column("object_id", sa.Text(), nullable=True, comment="the provider's, that answers it"),
        sa.Column("reason", sa.Text(), nullable=True, comment="of the last failure"),
        sa.CheckConstraint(
            "kind IN ('top_up', 'refund', 'invoice', 'meter')", name=op.f("ck_payment_outbox_kind")
        ),
        sa.CheckConstraint("outcome IN ('open', 'done', 'failed')", name=op.f("ck_payment_outbox_outcome")),
        sa.CheckConstraint(
            "(outcome = 'open') = (due_at IS NOT NULL)", name=op.f("ck_payment_outbox_due_at")
        ),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_payment_outbox_attempts")),
        of_tenant("payment_outbox"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_payment_outbox")),
    )
    op.create_index(
        "ix_payment_outbox_due_at",
        "payment_outbox",
        ["due_at"],
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_index("ix_payment_outbox_tenant_id", "payment_outbox", ["tenant_id", "created_at"])
