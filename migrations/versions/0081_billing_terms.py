"""What tenants are billed by beside prices: terms, coupons, and the names that documents bear.

One phase: expand.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from billing.db.access import OPERATOR_ROLE
from migrations.protection import protect, unprotect

revision = "0081"
down_revision = "0080"
branch_labels = None
depends_on = None

WRITERS = {
    "billing_profile": "INSERT, UPDATE, DELETE",
    "billing_terms": "INSERT",
    "coupon": "INSERT, UPDATE (ended_at)",
}


def upgrade() -> None:
    op.create_table(
        "billing_profile",
        sa.Column("tenant_id", sa.Text(), nullable=False, comment="or house: who sells"),
        sa.Column("profile", JSONB(), nullable=False, comment="personal: erased with the tenant"),
        *written("set"),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_billing_profile")),
    )
    op.create_table(
        "billing_terms",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("effective_from", sa.Date(), nullable=False, comment="a day of the tenant's zone"),
        sa.Column(
            "revision",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="the highest of a day holds",
        ),
        sa.Column("terms", JSONB(), nullable=False),
        *written("set"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_billing_terms_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "effective_from", "revision", name=op.f("pk_billing_terms")),
    )
    op.create_table(
        "coupon",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("percent", sa.Text()),
        sa.Column("cents", sa.BigInteger()),
        sa.Column("minimum_cents", sa.BigInteger(), nullable=False),
        sa.Column("periods", sa.Integer(), comment="that it is used in; null: all"),
        sa.Column("effective_from", sa.Date(), nullable=False, comment="a day of the tenant's zone"),
        *written("given"),
        sa.Column("ended_at", sa.DateTime(timezone=True), comment="taken back"),
        sa.CheckConstraint("num_nulls(percent, cents) = 1", name=op.f("ck_coupon_off")),
        sa.CheckConstraint("cents > 0", name=op.f("ck_coupon_cents")),
        sa.CheckConstraint("periods > 0", name=op.f("ck_coupon_periods")),
        sa.CheckConstraint("minimum_cents >= 0", name=op.f("ck_coupon_minimum_cents")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_coupon_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "code", name=op.f("pk_coupon")),
    )
    for table, writes in WRITERS.items():
        protect(table, {OPERATOR_ROLE: writes})


def downgrade() -> None:
    for table in WRITERS:
        unprotect(table)
        op.drop_table(table)


def written(verb: str) -> tuple[sa.Column, ...]:
    """When, and by whom."""
    return (
        sa.Column(f"{verb}_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(f"{verb}_by", sa.Text(), nullable=False),
    )
