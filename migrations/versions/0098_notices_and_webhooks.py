"""What tenants are told, and their endpoints that want to be told it.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from billing.db.access import OPERATOR_ROLE, SETTLER_ROLE, TENANT_ROLE
from migrations.protection import protect, unprotect

revision = "0098"
down_revision = "0095"
branch_labels = None
depends_on = None

TEXTS = postgresql.ARRAY(sa.Text())
MANAGED = "INSERT, UPDATE, DELETE"
# Whoever does what is told tells it, in the same transaction. Only the erasure of a tenant deletes.
TOLD = {
    "notice": {OPERATOR_ROLE: "INSERT, DELETE", SETTLER_ROLE: "INSERT", TENANT_ROLE: "INSERT"},
    "webhook_endpoint": {OPERATOR_ROLE: MANAGED, TENANT_ROLE: MANAGED, SETTLER_ROLE: "UPDATE"},
    "webhook_secret": dict.fromkeys((OPERATOR_ROLE, TENANT_ROLE), "INSERT, UPDATE"),
    "webhook_delivery": dict.fromkeys((OPERATOR_ROLE, SETTLER_ROLE, TENANT_ROLE), "INSERT, UPDATE"),
    "webhook_attempt": {SETTLER_ROLE: "INSERT"},
}


def upgrade() -> None:
    make_notice()
    make_endpoint()
    make_delivery()
    for table, writers in TOLD.items():
        protect(table, writers)


def downgrade() -> None:
    for table in reversed(TOLD):
        unprotect(table)
        op.drop_table(table)


def make_notice() -> None:
    op.create_table(
        "notice",
        sa.Column("id", sa.Text(), nullable=False, comment="in the order of their instants"),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("facts", postgresql.JSONB(), nullable=False),
        sa.Column("dedupe", sa.Text(), comment="names the occasion, once a tenant"),
        sa.CheckConstraint("kind ~ '^[a-z]+[.][a-z_]+$'", name=op.f("ck_notice_kind")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_notice_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notice")),
        sa.UniqueConstraint("id", "tenant_id", name=op.f("uq_notice_id_tenant_id")),
        sa.UniqueConstraint("tenant_id", "dedupe", name=op.f("uq_notice_tenant_id_dedupe")),
    )
    op.create_index(op.f("ix_notice_tenant_id_id"), "notice", ["tenant_id", "id"])


def make_endpoint() -> None:
    op.create_table(
        "webhook_endpoint",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kinds", TEXTS, comment="null: all"),
        sa.Column("enabled", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("disabled_for", sa.Text(), comment="why, where it was not its tenant"),
        sa.Column("failing_since", sa.DateTime(timezone=True), comment="null: the last attempt was taken"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kinds <> '{}'", name=op.f("ck_webhook_endpoint_kinds")),
        sa.CheckConstraint("url <> ''", name=op.f("ck_webhook_endpoint_url")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_webhook_endpoint_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoint")),
        sa.UniqueConstraint("id", "tenant_id", name=op.f("uq_webhook_endpoint_id_tenant_id")),
    )
    op.create_index(op.f("ix_webhook_endpoint_tenant_id"), "webhook_endpoint", ["tenant_id"])
    op.create_table(
        "webhook_secret",
        sa.Column("id", sa.Text(), nullable=False, comment="what the sealed secret is bound to"),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="of its endpoint"),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False, comment="encrypted under a secret of the deployment"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), comment="null: the endpoint's present secret"),
        of_endpoint("webhook_secret"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_secret")),
    )
    op.create_index(
        "uq_webhook_secret_present",
        "webhook_secret",
        ["endpoint_id"],
        unique=True,
        postgresql_where=sa.text("ends_at IS NULL"),
    )
    op.create_index(op.f("ix_webhook_secret_endpoint_id"), "webhook_secret", ["endpoint_id"])


def make_delivery() -> None:
    op.create_table(
        "webhook_delivery",
        sa.Column("notice_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="of both"),
        sa.Column("state", sa.Text(), server_default=sa.text("'pending'"), nullable=False),
        sa.Column(
            "due_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="of the next attempt; of the last one, once settled",
        ),
        sa.Column(
            "tries",
            sa.Integer(),
            server_default=sa.text("0"),
            nullable=False,
            comment="since it was last wanted",
        ),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False, comment="in all"),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'given_up')", name=op.f("ck_webhook_delivery_state")
        ),
        of_endpoint("webhook_delivery"),
        sa.ForeignKeyConstraint(
            ["notice_id", "tenant_id"],
            ["notice.id", "notice.tenant_id"],
            name=op.f("fk_webhook_delivery_notice_id_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("notice_id", "endpoint_id", name=op.f("pk_webhook_delivery")),
    )
    op.create_index(
        "ix_webhook_delivery_due",
        "webhook_delivery",
        ["due_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        op.f("ix_webhook_delivery_endpoint_id_notice_id"), "webhook_delivery", ["endpoint_id", "notice_id"]
    )
    op.create_table(
        "webhook_attempt",
        sa.Column("notice_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False, comment="from 1"),
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="of its delivery"),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.Column("status", sa.Integer(), comment="of the answer; null: there was none"),
        sa.Column("error", sa.Text(), comment="null: it was delivered"),
        sa.CheckConstraint("number > 0", name=op.f("ck_webhook_attempt_number")),
        sa.CheckConstraint("length(error) <= 500", name=op.f("ck_webhook_attempt_error")),
        sa.ForeignKeyConstraint(
            ["notice_id", "endpoint_id"],
            ["webhook_delivery.notice_id", "webhook_delivery.endpoint_id"],
            name=op.f("fk_webhook_attempt_notice_id_endpoint_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("notice_id", "endpoint_id", "number", name=op.f("pk_webhook_attempt")),
    )


def of_endpoint(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["endpoint_id", "tenant_id"],
        ["webhook_endpoint.id", "webhook_endpoint.tenant_id"],
        name=op.f(f"fk_{table}_endpoint_id_tenant_id"),
        ondelete="CASCADE",
    )
