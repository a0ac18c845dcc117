"""What migrations say of a table: who may write it, and whose rows a role sees."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from alembic import op

from billing.db.access import ALL_TENANTS, ONE_TENANT, ROLES, TENANT_SETTING

OWN: Final = f"tenant_id = current_setting('{TENANT_SETTING}', true)"


def protect(
    table: str, writers: Mapping[str, str], tenant_column: str = "tenant_id", own: str | None = None
) -> None:
    """Let every role read a table of tenants' rows, and these roles write it, under forced row security.

    Args:
        table: of the schema ``public``.
        writers: privileges such as ``"INSERT, UPDATE"`` by role; a tenant's role writes its own rows alone.
        tenant_column: names the tenant of a row; rows where it is null are no tenant's to see.
        own: which rows a tenant sees, where the column alone does not say it.
    """
    open_to_all(table, writers)
    own = own or OWN.replace("tenant_id", tenant_column, 1)
    op.execute(f"CREATE POLICY all_tenants ON {table} TO {', '.join(ALL_TENANTS)} USING (true)")
    op.execute(f"CREATE POLICY own_rows ON {table} TO {', '.join(ONE_TENANT)} USING ({own})")
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")


def unprotect(table: str) -> None:
    """Undo ``protect``."""
    op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY")
    op.execute(f"DROP POLICY own_rows ON {table}")
    op.execute(f"DROP POLICY all_tenants ON {table}")
    close(table)


def open_to_all(table: str, writers: Mapping[str, str]) -> None:
    """Let every role read a table that is not of tenants, and these roles write it."""
    op.execute(f"GRANT SELECT ON {table} TO {', '.join(ROLES)}")
    for role, privileges in writers.items():
        op.execute(f"GRANT {privileges} ON {table} TO {role}")


def close(table: str) -> None:
    """Undo ``open_to_all``."""
    op.execute(f"REVOKE ALL ON {table} FROM {', '.join(ROLES)}")


@contextmanager
def unforced(*tables: str) -> Iterator[None]:
    """Let the owner see the rows of protected tables while a migration moves them."""
    for table in tables:
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    yield
    for table in tables:
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
