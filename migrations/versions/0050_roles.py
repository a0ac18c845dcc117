"""Transactions act as roles, and rows are seen by tenant.

One phase: expand.
"""

from alembic import op
from sqlalchemy import exc, text

from billing.db.access import OPERATOR_ROLE, ROLES, SETTLER_ROLE, TENANT_ROLE, roles_sql
from billing.errors import RolesMissing
from migrations.protection import OWN, close, open_to_all, protect, unprotect

revision = "0050"
down_revision = "0043"
branch_labels = None
depends_on = None

APPENDED = ("usage_event", "attestation", "usage_quarantine", "ledger_transaction", "ledger_entry")
PROJECTED = ("balance", "credit_lot")
ANSWERS = ("idempotency_record", "top_up_request", "auto_top_up")
PRICES = ("price_window", "price_tier")
TENANCY = {
    "api_key": "INSERT, UPDATE",
    "key_secret": "INSERT, UPDATE",
    "project": "INSERT, UPDATE",
    "tenant_user": "INSERT, UPDATE, DELETE",
    "usage_limit": "INSERT, UPDATE, DELETE",
    "budget": "INSERT, UPDATE, DELETE",
    "audit_event": "INSERT",
    "audit_head": "INSERT, UPDATE",
}
PUBLIC = ("price_plan",)


def upgrade() -> None:
    make_roles()
    op.execute(f"GRANT USAGE ON SCHEMA public TO {', '.join(ROLES)}")
    for table in APPENDED:
        protect(table, {SETTLER_ROLE: "INSERT"})
    for table in PROJECTED:
        protect(table, {SETTLER_ROLE: "INSERT, UPDATE"})
    protect("auto_top_up", {OPERATOR_ROLE: "INSERT, UPDATE", SETTLER_ROLE: "UPDATE"})
    protect("top_up_request", {SETTLER_ROLE: "INSERT"})
    protect("idempotency_record", {SETTLER_ROLE: "INSERT, UPDATE, DELETE"})
    protect(
        "tenant",
        {OPERATOR_ROLE: "INSERT, UPDATE", SETTLER_ROLE: "UPDATE (billing_mode, credit_limit)"},
        tenant_column="id",
    )
    protect("tenant_plan", {OPERATOR_ROLE: "INSERT"})
    protect("price_row", {OPERATOR_ROLE: "INSERT"}, own=f"tenant_id IS NULL OR {OWN}")
    for table in PRICES:
        own = f"EXISTS (SELECT FROM price_row WHERE price_row.id = {table}.price_row_id)"
        protect(table, {OPERATOR_ROLE: "INSERT"}, own=own)
    for table, writes in TENANCY.items():
        protect(table, {OPERATOR_ROLE: writes, TENANT_ROLE: writes})
    for table in PUBLIC:
        open_to_all(table, {OPERATOR_ROLE: "INSERT"})


def downgrade() -> None:
    """The roles stay: other databases of the server may use them."""
    for table in PUBLIC:
        close(table)
    tenants = ("tenant", "tenant_plan", *TENANCY)
    for table in (*PRICES, "price_row", *tenants, *ANSWERS, *PROJECTED, *APPENDED):
        unprotect(table)
    op.execute(f"REVOKE USAGE ON SCHEMA public FROM {', '.join(ROLES)}")


def make_roles() -> None:
    """Make the roles and let the one that logs in act as them, unless it already may."""
    connection = op.get_bind()
    missing = text("""
        SELECT wanted FROM unnest(CAST(:roles AS text[])) AS wanted LEFT JOIN pg_roles ON rolname = wanted
        WHERE rolname IS NULL OR NOT pg_has_role(rolname, 'SET')
    """)
    if not connection.execute(missing, {"roles": list(ROLES)}).all():
        return
    statements = roles_sql(connection.execute(text("SELECT current_user")).scalar_one())
    try:
        with connection.begin_nested():
            for statement in statements:
                connection.exec_driver_sql(statement)
    except exc.DBAPIError as error:
        raise RolesMissing("; ".join(statements)) from error
