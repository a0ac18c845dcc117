"""Tenancy, prices, usage events and the ledger (expand)."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FEMTO = sa.Numeric(38, 0)


def upgrade() -> None:
    create_tenancy()
    create_prices()
    create_usage()
    create_credit()
    create_ledger()


def downgrade() -> None:
    for table in (
        "balance",
        "ledger_entry",
        "credit_lot",
        "ledger_transaction",
        "attestation",
        "usage_event",
        "price_window",
        "price_row",
        "api_key",
        "tenant",
    ):
        op.drop_table(table)


def create_tenancy() -> None:
    op.create_table(
        "tenant",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("currency ~ '^[A-Z]{3}$'", name=op.f("ck_tenant_currency")),
        sa.CheckConstraint("name <> ''", name=op.f("ck_tenant_named")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenant")),
        sa.UniqueConstraint("id", "currency", name=op.f("uq_tenant_id_currency")),
        sa.UniqueConstraint("name", name=op.f("uq_tenant_name")),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("octet_length(digest) = 32", name=op.f("ck_api_key_digest")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_api_key_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_key_digest")),
        sa.UniqueConstraint("id", "tenant_id", name=op.f("uq_api_key_id_tenant_id")),
    )
    op.create_index(op.f("ix_api_key_tenant_id"), "api_key", ["tenant_id"])


def create_prices() -> None:
    op.create_table(
        "price_row",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("instant", sa.Text(), nullable=False),
        sa.Column("standard_name", sa.Text(), nullable=False),
        sa.Column("hit", FEMTO, nullable=False),
        sa.Column("miss", FEMTO, nullable=False),
        sa.Column("output", FEMTO, nullable=False),
        sa.Column("write", FEMTO, nullable=True),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("published_by", sa.Text(), nullable=False),
        sa.CheckConstraint("instant IN ('admitted', 'completed')", name=op.f("ck_price_row_instant")),
        sa.CheckConstraint(
            "hit >= 0 AND miss >= 0 AND output >= 0 AND write >= 0", name=op.f("ck_price_row_rates")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price_row")),
        sa.UniqueConstraint(
            "model", "currency", "effective_from", name=op.f("uq_price_row_model_currency_effective_from")
        ),
    )
    op.create_table(
        "price_window",
        sa.Column("price_row_id", sa.Text(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("opens", sa.Time(), nullable=False),
        sa.Column("closes", sa.Time(), nullable=False),
        sa.Column("tz", sa.Text(), nullable=False),
        sa.Column("days", sa.Text(), nullable=False, comment="digits of the weekdays, Monday is 0"),
        sa.Column("holidays", sa.Text(), nullable=True),
        sa.Column("hit", FEMTO, nullable=False),
        sa.Column("miss", FEMTO, nullable=False),
        sa.Column("output", FEMTO, nullable=False),
        sa.Column("write", FEMTO, nullable=True),
        sa.CheckConstraint("days ~ '^[0-6]+$'", name=op.f("ck_price_window_days")),
        sa.CheckConstraint(
            "hit >= 0 AND miss >= 0 AND output >= 0 AND write >= 0", name=op.f("ck_price_window_rates")
        ),
        sa.ForeignKeyConstraint(
            ["price_row_id"], ["price_row.id"], name=op.f("fk_price_window_price_row_id")
        ),
        sa.PrimaryKeyConstraint("price_row_id", "position", name=op.f("pk_price_window")),
    )


def create_usage() -> None:
    op.create_table(
        "usage_event",
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("traffic_class", sa.Text(), nullable=False),
        sa.Column("admitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("rated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cache_hit", sa.Integer(), nullable=False),
        sa.Column("cache_owed", sa.Integer(), nullable=False),
        sa.Column("cache_write", sa.Integer(), nullable=False),
        sa.Column("cache_miss", sa.Integer(), nullable=False),
        sa.Column("output", sa.Integer(), nullable=False),
        sa.Column("reasoning", sa.Integer(), nullable=False),
        sa.Column("charge", FEMTO, nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("price_row_id", sa.Text(), nullable=False),
        sa.Column("price_window", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "status IN ('completed', 'aborted', 'failed')", name=op.f("ck_usage_event_status")
        ),
        sa.CheckConstraint(
            "cache_hit + cache_owed = 0 OR cache_write + cache_miss > 0",
            name=op.f("ck_usage_event_one_computed"),
        ),
        sa.CheckConstraint(
            "cache_hit >= 0 AND cache_owed >= 0 AND cache_write >= 0 AND cache_miss >= 0 AND output >= 0",
            name=op.f("ck_usage_event_counts"),
        ),
        sa.CheckConstraint("charge >= 0", name=op.f("ck_usage_event_charge")),
        sa.CheckConstraint("reasoning BETWEEN 0 AND output", name=op.f("ck_usage_event_reasoning")),
        sa.ForeignKeyConstraint(
            ["key_id", "tenant_id"],
            ["api_key.id", "api_key.tenant_id"],
            name=op.f("fk_usage_event_key_id_tenant_id"),
        ),
        sa.ForeignKeyConstraint(["price_row_id"], ["price_row.id"], name=op.f("fk_usage_event_price_row_id")),
        sa.ForeignKeyConstraint(
            ["tenant_id", "currency"],
            ["tenant.id", "tenant.currency"],
            name=op.f("fk_usage_event_tenant_id_currency"),
        ),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_usage_event")),
    )
    op.create_index(op.f("ix_usage_event_rated_at_request_id"), "usage_event", ["rated_at", "request_id"])
    op.create_index(
        op.f("ix_usage_event_tenant_id_rated_at_request_id"),
        "usage_event",
        ["tenant_id", "rated_at", "request_id"],
    )
    op.create_table(
        "attestation",
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="of its event"),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["usage_event.request_id"], name=op.f("fk_attestation_request_id")
        ),
        sa.PrimaryKeyConstraint("request_id", "position", name=op.f("pk_attestation")),
    )


def create_credit() -> None:
    op.create_table(
        "ledger_transaction",
        sa.Column("id", sa.Uuid(), nullable=False, comment="of a charge: the request id"),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.CheckConstraint("kind IN ('charge', 'credit', 'expiry')", name=op.f("ck_ledger_transaction_kind")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_ledger_transaction_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_transaction")),
    )
    op.create_index(
        "uq_ledger_transaction_tenant_id_idempotency_key",
        "ledger_transaction",
        ["tenant_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_table(
        "credit_lot",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("amount", FEMTO, nullable=False),
        sa.Column(
            "remaining",
            FEMTO,
            nullable=False,
            comment="projection of the entries of this lot",
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("account IN ('granted', 'topped_up')", name=op.f("ck_credit_lot_account")),
        sa.CheckConstraint("amount > 0", name=op.f("ck_credit_lot_amount")),
        sa.CheckConstraint("remaining BETWEEN 0 AND amount", name=op.f("ck_credit_lot_remaining")),
        sa.ForeignKeyConstraint(["id"], ["ledger_transaction.id"], name=op.f("fk_credit_lot_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_credit_lot_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credit_lot")),
    )
    op.create_index(
        "ix_credit_lot_expiring",
        "credit_lot",
        ["expires_at"],
        postgresql_where=sa.text("remaining > 0"),
    )
    op.create_index(
        "ix_credit_lot_open",
        "credit_lot",
        ["tenant_id"],
        postgresql_where=sa.text("remaining > 0"),
    )


def create_ledger() -> None:
    op.create_table(
        "ledger_entry",
        sa.Column("transaction_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="of its transaction"),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("lot_id", sa.Uuid(), nullable=True),
        sa.Column("amount", FEMTO, nullable=False),
        sa.CheckConstraint(
            "account IN ('granted', 'topped_up', 'revenue', 'promotion', 'cash')",
            name=op.f("ck_ledger_entry_account"),
        ),
        sa.CheckConstraint("amount <> 0", name=op.f("ck_ledger_entry_amount")),
        sa.ForeignKeyConstraint(["lot_id"], ["credit_lot.id"], name=op.f("fk_ledger_entry_lot_id")),
        sa.ForeignKeyConstraint(
            ["transaction_id"], ["ledger_transaction.id"], name=op.f("fk_ledger_entry_transaction_id")
        ),
        sa.PrimaryKeyConstraint("transaction_id", "position", name=op.f("pk_ledger_entry")),
    )
    op.create_table(
        "balance",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("granted", FEMTO, nullable=False),
        sa.Column(
            "topped_up",
            FEMTO,
            nullable=False,
            comment="negative: debt",
        ),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_balance_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_balance")),
    )
