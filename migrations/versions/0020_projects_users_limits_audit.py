"""Projects, users, secrets of keys apart from keys, limits, budgets and the audit log.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0020"
down_revision = "0011"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
FEMTO = sa.Numeric(38, 0)
MEASURES = (
    "measure IN ('requests_per_minute', 'input_tokens_per_minute', 'output_tokens_per_minute', "
    "'tokens_per_day', 'concurrent')"
)


def upgrade() -> None:
    widen_tenant_and_key()
    create_secrets()
    create_users()
    create_limits()
    create_budgets()
    create_audit()


def downgrade() -> None:
    for table in ("audit_head", "audit_event", "budget", "usage_limit", "tenant_user", "key_secret"):
        op.drop_table(table)
    for column in (
        *("project_id", "scopes", "models", "networks"),
        *("expires_at", "traffic_class", "traffic_classes", "max_tokens"),
    ):
        op.drop_column("api_key", column)
    op.drop_table("project")
    op.drop_column("tenant", "tz")
    for column in ("digest", "prefix"):
        op.alter_column("api_key", column, nullable=False)


def widen_tenant_and_key() -> None:
    op.add_column(
        "tenant",
        sa.Column("tz", sa.Text(), server_default="UTC", nullable=False, comment="where its days begin"),
    )
    op.create_table(
        "project",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("archived_at", INSTANT, nullable=True),
        sa.CheckConstraint("name <> ''", name=op.f("ck_project_named")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_project_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project")),
        sa.UniqueConstraint("id", "tenant_id", name=op.f("uq_project_id_tenant_id")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_project_tenant_id_name")),
    )
    for column in (
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("scopes", ARRAY(sa.Text()), nullable=True),
        sa.Column("models", ARRAY(sa.Text()), nullable=True, comment="null: all"),
        sa.Column("networks", ARRAY(sa.Text()), nullable=True, comment="null: any address"),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.Column("traffic_class", sa.Text(), nullable=True, comment="null: as the request looks"),
        sa.Column("traffic_classes", ARRAY(sa.Text()), nullable=True, comment="that a header may choose"),
        sa.Column("max_tokens", sa.Integer(), nullable=True),
    ):
        op.add_column("api_key", column)
    for name, rule in {
        "scopes": "scopes <@ '{inference,usage_read,management}' AND scopes <> '{}'",
        "apart": "NOT scopes @> '{inference,management}'",
        "traffic_class": "traffic_class IN ('agent', 'chat')",
        "traffic_classes": "traffic_classes <@ '{agent,chat}'",
        "max_tokens": "max_tokens > 0",
    }.items():
        op.create_check_constraint(op.f(f"ck_api_key_{name}"), "api_key", rule)


def create_secrets() -> None:
    op.create_table(
        "key_secret",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="of its key"),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("ends_at", INSTANT, nullable=True, comment="null: the key's present secret"),
        sa.CheckConstraint("octet_length(digest) = 32", name=op.f("ck_key_secret_digest")),
        sa.ForeignKeyConstraint(
            ["key_id", "tenant_id"],
            ["api_key.id", "api_key.tenant_id"],
            name=op.f("fk_key_secret_key_id_tenant_id"),
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_key_secret")),
    )
    op.create_index(
        "uq_key_secret_present",
        "key_secret",
        ["key_id"],
        unique=True,
        postgresql_where=sa.text("ends_at IS NULL"),
    )


def create_users() -> None:
    op.create_table(
        "tenant_user",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.CheckConstraint("email = lower(email) AND email <> ''", name=op.f("ck_tenant_user_email")),
        sa.CheckConstraint(
            "role IN ('owner', 'admin', 'finance', 'developer', 'viewer')", name=op.f("ck_tenant_user_role")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_tenant_user_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenant_user")),
        sa.UniqueConstraint("tenant_id", "email", name=op.f("uq_tenant_user_tenant_id_email")),
    )


def create_limits() -> None:
    op.create_table(
        "usage_limit",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("measure", sa.Text(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True, comment="null: all together"),
        sa.Column("per_user", sa.Boolean(), nullable=False),
        sa.Column("cached_free", sa.Boolean(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.CheckConstraint("num_nulls(project_id, key_id) > 0", name=op.f("ck_usage_limit_one_owner")),
        sa.CheckConstraint(MEASURES, name=op.f("ck_usage_limit_measure")),
        sa.CheckConstraint("amount >= 0", name=op.f("ck_usage_limit_amount")),
        *owners("usage_limit"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_limit")),
        sa.UniqueConstraint(
            *("tenant_id", "project_id", "key_id", "measure", "model", "per_user"),
            name="uq_usage_limit_rule",
            postgresql_nulls_not_distinct=True,
        ),
    )


def create_budgets() -> None:
    op.create_table(
        "budget",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("amount", FEMTO, nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("hard", sa.Boolean(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.CheckConstraint("num_nulls(project_id, key_id) > 0", name=op.f("ck_budget_one_owner")),
        sa.CheckConstraint("amount >= 0", name=op.f("ck_budget_amount")),
        sa.CheckConstraint(
            "period IN ('daily', 'weekly', 'monthly', 'lifetime')", name=op.f("ck_budget_period")
        ),
        *owners("budget"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget")),
    )
    op.create_index(op.f("ix_budget_tenant_id"), "budget", ["tenant_id"])


def owners(table: str) -> list[sa.ForeignKeyConstraint]:
    return [
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f(f"fk_{table}_tenant_id")),
        sa.ForeignKeyConstraint(
            ["project_id", "tenant_id"],
            ["project.id", "project.tenant_id"],
            name=op.f(f"fk_{table}_project_id_tenant_id"),
        ),
        sa.ForeignKeyConstraint(
            ["key_id", "tenant_id"],
            ["api_key.id", "api_key.tenant_id"],
            name=op.f(f"fk_{table}_key_id_tenant_id"),
        ),
    ]


def create_audit() -> None:
    op.create_table(
        "audit_event",
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="or house: its own chain"),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object", sa.Text(), nullable=False),
        sa.Column("before", JSONB(), nullable=True),
        sa.Column("after", JSONB(), nullable=True),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("position > 0", name=op.f("ck_audit_event_position")),
        sa.CheckConstraint("octet_length(hash) = 32", name=op.f("ck_audit_event_hash")),
        sa.PrimaryKeyConstraint("tenant_id", "position", name=op.f("pk_audit_event")),
    )
    op.create_table(
        "audit_head",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False, comment="of the newest event"),
        sa.Column("hash", sa.LargeBinary(), nullable=False, comment="of the newest event"),
        sa.CheckConstraint("position >= 0", name=op.f("ck_audit_head_position")),
        sa.CheckConstraint("octet_length(hash) = 32", name=op.f("ck_audit_head_hash")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_audit_head")),
    )
