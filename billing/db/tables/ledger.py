"""Double entry, which only grows, and its projections.

A transaction is written with its entries, lots and balance, and the balance's foreign key names the tenant.
Keys of transactions and entries would cost more than their rows; `billing.ledger.integrity` looks instead.
A trigger looks once a statement whether the entries of each transaction in it sum to zero.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    ForeignKey,
    Index,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

ledger_transaction: Final = Table(
    "ledger_transaction",
    metadata,
    Column("id", Uuid, primary_key=True, comment="of a charge: the request id"),
    Column("tenant_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("at", instant(), nullable=False),
    Column("actor", Text),
    Column("reason", Text),
    Column("idempotency_key", Text),
    Index(
        "uq_ledger_transaction_tenant_id_idempotency_key",
        "tenant_id",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index("ix_ledger_transaction_movement", "tenant_id", "id", postgresql_where=text("kind <> 'charge'")),
    CheckConstraint(
        "kind IN ('charge', 'credit', 'expiry', 'refund', 'write_off', 'correction',"
        " 'invoice', 'payment', 'credit_note', 'uncollectible')",
        name="kind",
    ),
    CheckConstraint(
        "kind = 'charge' OR (coalesce(actor, '') <> '' AND coalesce(reason, '') <> '')", name="explained"
    ),
)

credit_lot: Final = Table(
    "credit_lot",
    metadata,
    Column("id", Uuid, ForeignKey("ledger_transaction.id"), primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("account", Text, nullable=False),
    Column("amount", FemtoNumeric, nullable=False),
    Column("remaining", FemtoNumeric, nullable=False, comment="projection of the entries of this lot"),
    Column("created_at", instant(), nullable=False),
    Column("expires_at", instant()),
    Column("priority", SmallInteger, nullable=False, server_default=text("50"), comment="lower goes first"),
    # Indexes that named ``remaining`` would be written with every charge.
    Column("spent", Boolean, Computed("remaining = 0", persisted=True)),
    CheckConstraint("account IN ('granted', 'topped_up')", name="account"),
    CheckConstraint("amount > 0", name="amount"),
    CheckConstraint("remaining BETWEEN 0 AND amount", name="remaining"),
    CheckConstraint("priority BETWEEN 1 AND 100", name="priority"),
    Index("ix_credit_lot_open", "tenant_id", postgresql_where=text("NOT spent")),
    Index("ix_credit_lot_expiring", "expires_at", postgresql_where=text("NOT spent")),
)

ledger_entry: Final = Table(
    "ledger_entry",
    metadata,
    Column("transaction_id", Uuid, primary_key=True),
    Column("position", SmallInteger, primary_key=True),
    Column("tenant_id", Text, nullable=False, comment="of its transaction"),
    Column("account", Text, nullable=False),
    Column("lot_id", Uuid),
    Column("amount", FemtoNumeric, nullable=False),
    CheckConstraint(
        "account IN ('granted', 'topped_up', 'receivable',"
        " 'revenue', 'promotion', 'cash', 'breakage', 'bad_debt', 'fees', 'discounts', 'tax_payable')",
        name="account",
    ),
    CheckConstraint("amount <> 0", name="amount"),
)

balance: Final = Table(
    "balance",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("granted", FemtoNumeric, nullable=False),
    Column("topped_up", FemtoNumeric, nullable=False, comment="negative: debt"),
    Column("version", BigInteger, nullable=False),
    Column("receivable", FemtoNumeric, nullable=False, server_default=text("0"), comment="negative: owed"),
)
