"""The tables of the job queue, in a schema of their own, and the one way for transactions of ours to it.

One phase: expand. The statements are Procrastinate's own, of the version that is pinned exactly: what another
version changes is a migration of its own, before which these statements are kept here.
"""

from importlib import resources
from typing import Any

from alembic import op

from billing.db.access import OPERATOR_ROLE, SETTLER_ROLE, TENANT_ROLE
from billing.queue import SCHEMA

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None

WRITERS = f"{SETTLER_ROLE}, {OPERATOR_ROLE}, {TENANT_ROLE}"
# Its owner's rights, so that who may enqueue need not see the queue.
ENQUEUE = f"""
    CREATE FUNCTION {SCHEMA}.enqueue(task text, lock text, arguments jsonb) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER SET search_path = {SCHEMA}, pg_temp AS $$
        SELECT (procrastinate_defer_jobs_v1(ARRAY[
            ROW('default', task, 0, lock, NULL, arguments, NULL)::procrastinate_job_to_defer_v1
        ]))[1]
    $$
"""


def upgrade() -> None:
    statements = resources.files("procrastinate.sql").joinpath("schema.sql").read_text(encoding="utf-8")
    op.execute(f"CREATE SCHEMA {SCHEMA}")
    op.execute(f"SET LOCAL search_path = {SCHEMA}")
    op.get_bind().connection.dbapi_connection.run_async(whole(statements))
    op.execute("SET LOCAL search_path TO DEFAULT")
    op.execute(ENQUEUE)
    op.execute(f"REVOKE EXECUTE ON FUNCTION {SCHEMA}.enqueue FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION {SCHEMA}.enqueue TO {WRITERS}")
    op.execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {WRITERS}")


def downgrade() -> None:
    op.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def whole(statements: str) -> Any:
    """All at once, as the driver takes a script."""

    async def run(driver: Any) -> None:
        await driver.execute(statements)

    return run
