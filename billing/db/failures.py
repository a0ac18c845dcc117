"""What a failure of Postgres or of the way to it means: try again, or do not."""

from typing import Final

import asyncpg
from sqlalchemy import exc

from billing.errors import BillingError, StoreRefused, StoreUnavailable

# https://www.postgresql.org/docs/current/errcodes-appendix.html, the first two characters are the class.
_UNAVAILABLE_CLASSES: Final = {
    "08",  # connection exception
    "40",  # transaction rollback: serialization failure, deadlock
    "53",  # insufficient resources: too many connections, disk full
    "57",  # operator intervention: shutdown, cannot connect now, statement timeout
    "58",  # system error, external to Postgres
}
_LOCK_NOT_AVAILABLE: Final = "55P03"
_REFUSED_CLASSES: Final = {
    "22",  # data exception: a value that the column's type cannot hold
    "23",  # integrity constraint violation
}

DRIVER_FAILURES: Final = (
    exc.DBAPIError,
    exc.TimeoutError,  # no connection of the pool came free
    asyncpg.PostgresError,  # raw while connecting
    asyncpg.InterfaceError,
    OSError,
)


def failure_of(error: Exception) -> BillingError | None:
    """The error of our tree that a driver failure stands for; None: a fault of our own, such as bad SQL."""
    cause = _driver_error(error)
    sqlstate: str | None = getattr(cause, "sqlstate", None)
    reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    if sqlstate is None:
        if isinstance(cause, ValueError):
            return StoreRefused(None, reason)  # asyncpg could not encode a parameter
        return StoreUnavailable(reason)
    if sqlstate[:2] in _UNAVAILABLE_CLASSES or sqlstate == _LOCK_NOT_AVAILABLE:
        return StoreUnavailable(reason)
    if sqlstate[:2] in _REFUSED_CLASSES:
        return StoreRefused(getattr(cause, "constraint_name", None), reason)
    return None


def _driver_error(error: Exception) -> BaseException:
    """asyncpg's own error under SQLAlchemy's wrappers, where there is one."""
    if isinstance(error, exc.DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error
