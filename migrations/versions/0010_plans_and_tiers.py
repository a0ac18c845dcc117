"""Prices of plans, of single tenants and of tiers, and the tier that a request was rated at.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0004"
branch_labels = None
depends_on = None

FEMTO = sa.Numeric(38, 0)


def upgrade() -> None:
    create_plans()
    op.add_column(
        "price_row", sa.Column("plan", sa.Text(), comment="whose list it is in; null: not a plan's")
    )
    op.add_column(
        "price_row", sa.Column("tenant_id", sa.Text(), comment="whose own price it is; null: not a tenant's")
    )
    op.add_column("price_row", sa.Column("effective_until", sa.DateTime(timezone=True)))
    op.create_foreign_key(op.f("fk_price_row_plan"), "price_row", "price_plan", ["plan"], ["name"])
    op.create_foreign_key(
        op.f("fk_price_row_tenant_id_currency"),
        "price_row",
        "tenant",
        ["tenant_id", "currency"],
        ["id", "currency"],
    )
    op.create_check_constraint(op.f("ck_price_row_owner"), "price_row", "plan IS NULL OR tenant_id IS NULL")
    op.create_check_constraint(
        op.f("ck_price_row_ends"),
        "price_row",
        "effective_until IS NULL"
        " OR (effective_until >= effective_from AND num_nonnulls(plan, tenant_id) = 1)",
    )
    op.create_table(
        "price_tier",
        sa.Column("price_row_id", sa.Text(), nullable=False),
        sa.Column(
            "position", sa.SmallInteger(), nullable=False, comment="of the window; -1: of the row itself"
        ),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("hit", FEMTO, nullable=False),
        sa.Column("miss", FEMTO, nullable=False),
        sa.Column("output", FEMTO, nullable=False),
        sa.Column("write", FEMTO, nullable=True),
        sa.CheckConstraint("tier IN ('flex', 'batch')", name=op.f("ck_price_tier_tier")),
        sa.CheckConstraint(
            "hit >= 0 AND miss >= 0 AND output >= 0 AND write >= 0", name=op.f("ck_price_tier_rates")
        ),
        sa.ForeignKeyConstraint(["price_row_id"], ["price_row.id"], name=op.f("fk_price_tier_price_row_id")),
        sa.PrimaryKeyConstraint("price_row_id", "position", "tier", name=op.f("pk_price_tier")),
    )
    # Those who know no tiers write on.
    op.add_column("usage_event", sa.Column("tier", sa.Text(), nullable=False, server_default="standard"))
    op.create_check_constraint(
        op.f("ck_usage_event_tier"), "usage_event", "tier IN ('standard', 'flex', 'batch')"
    )


def create_plans() -> None:
    op.create_table(
        "price_plan",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.CheckConstraint("name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'", name=op.f("ck_price_plan_name")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_price_plan")),
    )
    op.create_table(
        "tenant_plan",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("plan", sa.Text(), nullable=True, comment="null: on none from here on"),
        sa.Column("placed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("placed_by", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["plan"], ["price_plan.name"], name=op.f("fk_tenant_plan_plan")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_tenant_plan_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "effective_from", name=op.f("pk_tenant_plan")),
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_usage_event_tier"), "usage_event")
    op.drop_column("usage_event", "tier")
    op.drop_table("price_tier")
    for constraint in (
        "ck_price_row_ends",
        "ck_price_row_owner",
        "fk_price_row_tenant_id_currency",
        "fk_price_row_plan",
    ):
        op.drop_constraint(op.f(constraint), "price_row")
    for column in ("effective_until", "tenant_id", "plan"):
        op.drop_column("price_row", column)
    op.drop_table("tenant_plan")
    op.drop_table("price_plan")
