"""All tables. Money is NUMERIC(38,0) femto-units; instants are TIMESTAMPTZ; the ledger only grows."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Time,
    UniqueConstraint,
    Uuid,
    func,
    text,
)

from billing.db.columns import FemtoNumeric

metadata: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _instant() -> DateTime:
    return DateTime(timezone=True)


tenant: Final = Table(
    "tenant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("currency", Text, nullable=False),
    Column("created_at", _instant(), nullable=False),
    UniqueConstraint("id", "currency"),
    CheckConstraint("name <> ''", name="named"),
    CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency"),
)

api_key: Final = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("created_at", _instant(), nullable=False),
    Column("revoked_at", _instant()),
    UniqueConstraint("id", "tenant_id"),
    CheckConstraint("octet_length(digest) = 32", name="digest"),
    Index(None, "tenant_id"),
)

price_row: Final = Table(
    "price_row",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("effective_from", _instant(), nullable=False),
    Column("instant", Text, nullable=False),
    Column("standard_name", Text, nullable=False),
    Column("hit", FemtoNumeric, nullable=False),
    Column("miss", FemtoNumeric, nullable=False),
    Column("output", FemtoNumeric, nullable=False),
    Column("write", FemtoNumeric),
    Column("published_at", _instant(), nullable=False),
    Column("published_by", Text, nullable=False),
    UniqueConstraint("model", "currency", "effective_from"),
    CheckConstraint("instant IN ('admitted', 'completed')", name="instant"),
    CheckConstraint("hit >= 0 AND miss >= 0 AND output >= 0 AND write >= 0", name="rates"),
)

price_window: Final = Table(
    "price_window",
    metadata,
    Column("price_row_id", Text, ForeignKey("price_row.id"), primary_key=True),
    Column("position", SmallInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("opens", Time, nullable=False),
    Column("closes", Time, nullable=False),
    Column("tz", Text, nullable=False),
    Column("days", Text, nullable=False, comment="digits of the weekdays, Monday is 0"),
    Column("holidays", Text),
    Column("hit", FemtoNumeric, nullable=False),
    Column("miss", FemtoNumeric, nullable=False),
    Column("output", FemtoNumeric, nullable=False),
    Column("write", FemtoNumeric),
    CheckConstraint("days ~ '^[0-6]+$'", name="days"),
    CheckConstraint("hit >= 0 AND miss >= 0 AND output >= 0 AND write >= 0", name="rates"),
)

usage_event: Final = Table(
    "usage_event",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("traffic_class", Text, nullable=False),
    Column("admitted_at", _instant(), nullable=False),
    Column("rated_at", _instant(), nullable=False),
    Column("cache_hit", Integer, nullable=False),
    Column("cache_owed", Integer, nullable=False),
    Column("cache_write", Integer, nullable=False),
    Column("cache_miss", Integer, nullable=False),
    Column("output", Integer, nullable=False),
    Column("reasoning", Integer, nullable=False),
    Column("charge", FemtoNumeric, nullable=False),
    Column("currency", Text, nullable=False),
    Column("price_row_id", Text, ForeignKey("price_row.id"), nullable=False),
    Column("price_window", Text, nullable=False),
    Column("recorded_at", _instant(), nullable=False, server_default=func.now()),
    ForeignKeyConstraint(["tenant_id", "currency"], ["tenant.id", "tenant.currency"]),
    ForeignKeyConstraint(["key_id", "tenant_id"], ["api_key.id", "api_key.tenant_id"]),
    CheckConstraint("status IN ('completed', 'aborted', 'failed')", name="status"),
    CheckConstraint(
        "cache_hit >= 0 AND cache_owed >= 0 AND cache_write >= 0 AND cache_miss >= 0 AND output >= 0",
        name="counts",
    ),
    CheckConstraint("cache_hit + cache_owed = 0 OR cache_write + cache_miss > 0", name="one_computed"),
    CheckConstraint("reasoning BETWEEN 0 AND output", name="reasoning"),
    CheckConstraint("charge >= 0", name="charge"),
    Index(None, "tenant_id", "rated_at", "request_id"),
    Index(None, "rated_at", "request_id"),
)

usage_attempt: Final = Table(
    "usage_attempt",
    metadata,
    Column("request_id", Uuid, ForeignKey("usage_event.request_id"), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Text, nullable=False, comment="of its event"),
    Column("stage", Text, nullable=False),
    Column("worker", Text, nullable=False),
    Column("output_from", Integer, nullable=False),
    Column("output_to", Integer, nullable=False),
    CheckConstraint("attempt >= 0", name="attempt"),
    CheckConstraint("stage IN ('prefill', 'decode', 'both')", name="stage"),
    CheckConstraint("0 <= output_from AND output_from <= output_to", name="output"),
)

attestation: Final = Table(
    "attestation",
    metadata,
    Column("request_id", Uuid, primary_key=True, comment="its event may come later, or never"),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, primary_key=True),
    Column("tenant_id", Text, comment="of its memo, when that names one"),
    Column("worker", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("recorded_at", _instant(), nullable=False, server_default=func.now()),
    CheckConstraint("attempt >= 0", name="attempt"),
    CheckConstraint("kind IN ('prefill', 'decode')", name="kind"),
)

ledger_transaction: Final = Table(
    "ledger_transaction",
    metadata,
    Column("id", Uuid, primary_key=True, comment="of a charge: the request id"),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("at", _instant(), nullable=False),
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
    CheckConstraint("kind IN ('charge', 'credit', 'expiry')", name="kind"),
)

credit_lot: Final = Table(
    "credit_lot",
    metadata,
    Column("id", Uuid, ForeignKey("ledger_transaction.id"), primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("account", Text, nullable=False),
    Column("amount", FemtoNumeric, nullable=False),
    Column("remaining", FemtoNumeric, nullable=False, comment="projection of the entries of this lot"),
    Column("created_at", _instant(), nullable=False),
    Column("expires_at", _instant()),
    CheckConstraint("account IN ('granted', 'topped_up')", name="account"),
    CheckConstraint("amount > 0", name="amount"),
    CheckConstraint("remaining BETWEEN 0 AND amount", name="remaining"),
    Index("ix_credit_lot_open", "tenant_id", postgresql_where=text("remaining > 0")),
    Index("ix_credit_lot_expiring", "expires_at", postgresql_where=text("remaining > 0")),
)

ledger_entry: Final = Table(
    "ledger_entry",
    metadata,
    Column("transaction_id", Uuid, ForeignKey("ledger_transaction.id"), primary_key=True),
    Column("position", SmallInteger, primary_key=True),
    Column("tenant_id", Text, nullable=False, comment="of its transaction"),
    Column("account", Text, nullable=False),
    Column("lot_id", Uuid, ForeignKey("credit_lot.id")),
    Column("amount", FemtoNumeric, nullable=False),
    CheckConstraint("account IN ('granted', 'topped_up', 'revenue', 'promotion', 'cash')", name="account"),
    CheckConstraint("amount <> 0", name="amount"),
)

balance: Final = Table(
    "balance",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("granted", FemtoNumeric, nullable=False),
    Column("topped_up", FemtoNumeric, nullable=False, comment="negative: debt"),
    Column("version", BigInteger, nullable=False),
)
