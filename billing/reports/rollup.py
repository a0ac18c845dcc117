"""Usage by quarters of an hour, built again and again from settled events.

The watermark is an instant, and the rollups hold exactly the events recorded before it. What is recorded
since is read from the events themselves, so that a report is never behind and never counts twice.

An event is recorded at the beginning of its transaction and is seen at the end of it. So the watermark never
passes the beginning of a transaction that is still open: those of Kvitto's processes are looked at first, and
the events are read afterwards, in a newer snapshot. All that was recorded before is there then, or never will
be. These processes log in as one role, so that each sees when the others began.

A slot in which anything was recorded since the last time is added up anew from all its events. To do so
twice, or in another order, changes nothing.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from billing.db.access import OWNER, SETTLER
from billing.db.horizon import select_horizon
from billing.db.transaction import Database
from billing.reports import repository

STEP: Final = timedelta(hours=1)  # of recording, in one transaction
LAG: Final = timedelta(seconds=1)  # covers the moment between a transaction's beginning and its showing

_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Rollups:
    """Any number may build at once: they wait for each other.

    Args:
        lag: how far the watermark stays behind the present.
    """

    def __init__(self, database: Database, lag: timedelta = LAG) -> None:
        self._database = database
        self._lag = lag

    async def build(self) -> int:
        """Take in what has been recorded since the last time; returns how many slots were added up.

        Raises:
            StoreUnavailable: the watermark is where the last whole step has left it.
        """
        async with self._database.transaction(OWNER) as connection:
            horizon = await select_horizon(connection, self._lag)
        slots, going_on = 0, True
        while going_on:
            async with self._database.transaction(SETTLER) as connection:
                since = await repository.lock_watermark(connection)
                if since == _NEVER:
                    since = await repository.select_first_recorded(connection) or horizon
                until = max(since, min(since + STEP, horizon))
                touched = await repository.select_touched(connection, since, until)
                await repository.add_up(connection, touched, until)
                await repository.move_watermark(connection, until)
            slots, going_on = slots + len(touched), until < horizon
        return slots

    async def rebuild(self, slots: list[datetime]) -> None:
        """Add up these slots anew, as they were at the watermark."""
        async with self._database.transaction(SETTLER) as connection:
            await repository.add_up(connection, slots, await repository.lock_watermark(connection))
