"""Before which instant nothing more is recorded."""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_HORIZON: Final = text("""
    SELECT least(now() - CAST(:lag AS interval), min(xact_start)) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'kvitto' AND pid <> pg_backend_pid()
""")


async def select_horizon(connection: AsyncConnection, lag: timedelta) -> datetime:
    """Before it nothing more is recorded, but by transactions that have ended when it is told.

    To be asked as the role that logs in; others are not shown when a transaction began.
    """
    horizon: datetime = (await connection.execute(_HORIZON, {"lag": lag})).scalar_one()
    return horizon
