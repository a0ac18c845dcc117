"""The one way to Postgres, and the one commit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import asyncpg
from sqlalchemy import event, exc
from sqlalchemy.engine import AdaptedConnection
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from billing.db.access import OPERATOR, Access
from billing.db.failures import DRIVER_FAILURES, failure_of

Connection: TypeAlias = AsyncConnection  # for services that pass one on

_CONNECT_TIMEOUT_S: Final = 5
_SESSION: Final = {
    "application_name": "kvitto",
    "timezone": "UTC",
    "statement_timeout": "30s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
}


class Database:
    """A pool of connections to one database, owned by one event loop.

    Args:
        url: ``postgresql+asyncpg://user:password@/name?host=/socket/directory``, or with a host and port.
        pool_size: connections at most.
        pool_timeout_s: who waits longer for one gets StoreUnavailable.
    """

    def __init__(self, url: str, pool_size: int = 8, pool_timeout_s: int = 5) -> None:
        self._engine = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=pool_timeout_s,
            isolation_level="AUTOCOMMIT",  # the transaction is begun and ended below
            connect_args={"timeout": _CONNECT_TIMEOUT_S, "server_settings": _SESSION},
        )
        event.listen(self._engine.sync_engine, "checkout", _look_after)

    async def close(self) -> None:
        """Close the pool; transactions in progress fail."""
        await self._engine.dispose()

    @asynccontextmanager
    async def transaction(self, access: Access = OPERATOR) -> AsyncIterator[AsyncConnection]:
        """One transaction: committed at the end of the block, rolled back by any exception that leaves it.

        Retries are the caller's. Role and tenant are set for this transaction alone, in the round trip that
        begins it.

        Raises:
            StoreUnavailable: no connection, a lost one, a timeout, a deadlock: try the whole block again.
            StoreRefused: a row breaks a constraint or does not fit its column.
        """
        try:
            async with self._engine.connect() as connection:
                driver = driver_of(connection)
                try:
                    await driver.execute(access.begin)
                    yield connection
                    ended = await driver.execute("COMMIT")
                    assert ended == "COMMIT", "the block went on after a statement of it had failed"
                finally:
                    await _leave(connection, driver)
        except DRIVER_FAILURES as error:
            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error


def driver_of(connection: AsyncConnection) -> asyncpg.Connection:
    """The connection under one that is open; without a switch of stacks, which `get_raw_connection` takes."""
    assert connection.sync_connection is not None
    driver: asyncpg.Connection = connection.sync_connection.connection.driver_connection
    return driver


def _look_after(dbapi: AdaptedConnection, _record: object, _proxy: object) -> None:
    """Have a new connection made in place of a lost one: a restarted Postgres costs its callers nothing.

    The loop has seen the end of the socket. A ping, as the pool would send, is a round trip a transaction.
    """
    if dbapi.driver_connection.is_closed():
        raise exc.DisconnectionError


async def _leave(connection: AsyncConnection, driver: asyncpg.Connection) -> None:
    """Undo what was not committed; a connection that cannot even do that is given up."""
    try:
        if not driver.is_closed() and driver.is_in_transaction():
            await driver.execute("ROLLBACK")
    except DRIVER_FAILURES:
        await connection.invalidate()
    except BaseException:
        await connection.invalidate()
        raise
