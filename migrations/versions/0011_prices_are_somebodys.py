"""A plan or a tenant may have a row of its own at the instant of a public one; events name their tier.

One phase: contract.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

OLD = "uq_price_row_model_currency_effective_from"
NEW = f"{OLD}_plan_tenant_id"
KEY = ["model", "currency", "effective_from"]


def upgrade() -> None:
    op.drop_constraint(op.f(OLD), "price_row")
    op.create_unique_constraint(
        op.f(NEW), "price_row", [*KEY, "plan", "tenant_id"], postgresql_nulls_not_distinct=True
    )
    op.alter_column("usage_event", "tier", server_default=None)


def downgrade() -> None:
    """Refused while a plan or a tenant has prices: they would become everybody's."""
    op.create_check_constraint(op.f("ck_price_row_public"), "price_row", "num_nonnulls(plan, tenant_id) = 0")
    op.drop_constraint(op.f("ck_price_row_public"), "price_row")
    op.alter_column("usage_event", "tier", server_default="standard")
    op.drop_constraint(op.f(NEW), "price_row")
    op.create_unique_constraint(op.f(OLD), "price_row", KEY)
