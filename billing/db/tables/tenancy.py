"""Who may ask, who pays, and what bounds both."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from billing.db.columns import FemtoNumeric
from billing.db.tables.schema import instant, metadata

tenant: Final = Table(
    "tenant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("currency", Text, nullable=False),
    Column("created_at", instant(), nullable=False),
    Column("billing_mode", Text, nullable=False, server_default=text("'prepaid'")),
    Column("credit_limit", FemtoNumeric, nullable=False, server_default=text("0"), comment="postpaid's"),
    Column("tz", Text, nullable=False, server_default=text("'UTC'"), comment="where its days begin"),
    Column(
        "nonce_secret",
        LargeBinary,
        server_default=text("sha256((uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))"),
        comment="hides its prompts in what workers attest; null: erased",
    ),
    Column("suspended_at", instant()),
    Column("suspended_by", Text, comment="who resumes it: an operator, or its payment"),
    Column("suspended_because", Text, comment="in an operator's words"),
    Column("erased_at", instant()),
    UniqueConstraint("id", "currency"),
    CheckConstraint("name <> ''", name="named"),
    CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency"),
    CheckConstraint("billing_mode IN ('prepaid', 'postpaid')", name="billing_mode"),
    CheckConstraint("credit_limit >= 0", name="credit_limit"),
    CheckConstraint("suspended_by IN ('operator', 'dunning')", name="suspended_by"),
    CheckConstraint("num_nulls(suspended_at, suspended_by, suspended_because) IN (0, 3)", name="suspended"),
)

project: Final = Table(
    "project",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", instant(), nullable=False),
    Column("archived_at", instant()),
    UniqueConstraint("id", "tenant_id"),
    UniqueConstraint("tenant_id", "name"),
    CheckConstraint("name <> ''", name="named"),
)

api_key: Final = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", instant(), nullable=False),
    Column("revoked_at", instant()),
    Column("project_id", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("models", ARRAY(Text), comment="null: all"),
    Column("networks", ARRAY(Text), comment="null: any address"),
    Column("expires_at", instant()),
    Column("traffic_class", Text, comment="null: as the request looks"),
    Column("traffic_classes", ARRAY(Text), nullable=False, comment="that a header may choose"),
    Column("max_tokens", Integer),
    UniqueConstraint("id", "tenant_id"),
    ForeignKeyConstraint(["project_id", "tenant_id"], ["project.id", "project.tenant_id"]),
    CheckConstraint("scopes <@ '{inference,usage_read,management}' AND scopes <> '{}'", name="scopes"),
    CheckConstraint("NOT scopes @> '{inference,management}'", name="apart"),
    CheckConstraint("traffic_class IN ('agent', 'chat')", name="traffic_class"),
    CheckConstraint("traffic_classes <@ '{agent,chat}'", name="traffic_classes"),
    CheckConstraint("max_tokens > 0", name="max_tokens"),
    Index(None, "tenant_id"),
)

key_secret: Final = Table(
    "key_secret",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("tenant_id", Text, nullable=False, comment="of its key"),
    Column("key_id", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("created_at", instant(), nullable=False),
    Column("ends_at", instant(), comment="null: the key's present secret"),
    ForeignKeyConstraint(["key_id", "tenant_id"], ["api_key.id", "api_key.tenant_id"]),
    CheckConstraint("octet_length(digest) = 32", name="digest"),
    Index("uq_key_secret_present", "key_id", unique=True, postgresql_where=text("ends_at IS NULL")),
)

tenant_user: Final = Table(
    "tenant_user",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("email", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_at", instant(), nullable=False),
    UniqueConstraint("tenant_id", "email"),
    CheckConstraint("email = lower(email) AND email <> ''", name="email"),
    CheckConstraint("role IN ('owner', 'admin', 'finance', 'developer', 'viewer')", name="role"),
)

usage_limit: Final = Table(
    "usage_limit",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("project_id", Text),
    Column("key_id", Text),
    Column("measure", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("model", Text, comment="null: all together"),
    Column("per_user", Boolean, nullable=False),
    Column("cached_free", Boolean, nullable=False),
    Column("created_at", instant(), nullable=False),
    ForeignKeyConstraint(["project_id", "tenant_id"], ["project.id", "project.tenant_id"]),
    ForeignKeyConstraint(["key_id", "tenant_id"], ["api_key.id", "api_key.tenant_id"]),
    UniqueConstraint(
        *("tenant_id", "project_id", "key_id", "measure", "model", "per_user"),
        name="uq_usage_limit_rule",
        postgresql_nulls_not_distinct=True,
    ),
    CheckConstraint("num_nulls(project_id, key_id) > 0", name="one_owner"),
    CheckConstraint(
        "measure IN ('requests_per_minute', 'input_tokens_per_minute', 'output_tokens_per_minute', "
        "'tokens_per_day', 'concurrent')",
        name="measure",
    ),
    CheckConstraint("amount >= 0", name="amount"),
)

budget: Final = Table(
    "budget",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("project_id", Text),
    Column("key_id", Text),
    Column("amount", FemtoNumeric, nullable=False),
    Column("period", Text, nullable=False),
    Column("hard", Boolean, nullable=False),
    Column("created_at", instant(), nullable=False),
    ForeignKeyConstraint(["project_id", "tenant_id"], ["project.id", "project.tenant_id"]),
    ForeignKeyConstraint(["key_id", "tenant_id"], ["api_key.id", "api_key.tenant_id"]),
    CheckConstraint("num_nulls(project_id, key_id) > 0", name="one_owner"),
    CheckConstraint("amount >= 0", name="amount"),
    CheckConstraint("period IN ('daily', 'weekly', 'monthly', 'lifetime')", name="period"),
    Index(None, "tenant_id"),
)
