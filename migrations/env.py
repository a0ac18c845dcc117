"""Runs migrations over asyncpg, one transaction for all, each statement under a lock and a time limit."""

import asyncio

from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from billing.db.tables import metadata

ONE_AT_A_TIME = 0x6B766974  # advisory lock, "kvit"
LIMITS = {"application_name": "kvitto-migrate", "lock_timeout": "5s", "statement_timeout": "60s"}


def migrate(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, compare_server_default=True)
    with context.begin_transaction():
        # Without a time limit: the one that migrates first may take its time.
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ONE_AT_A_TIME})
        connection.execute(text("SET LOCAL lock_timeout = '5s'"))
        context.run_migrations()


async def run() -> None:
    engine = create_async_engine(
        context.config.attributes["url"], poolclass=NullPool, connect_args={"server_settings": LIMITS}
    )
    async with engine.connect() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()


asyncio.run(run())
