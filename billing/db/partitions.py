"""Usage events by month of admission: the partitions of ``usage_event``, and the DDL that makes them.

They lie in a schema of their own. Nobody but the owner reads one directly: row security is enabled on each
and it has no policy, while what is read through ``usage_event`` obeys the policies of that. Ids of no month
that has a partition go to ``usage_event_default``: no event is ever refused for want of one.

A month is attached, not created in place: that takes no lock that stops a settlement, but for a moment on the
default partition.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.access import OWNER
from billing.db.transaction import Database

MONTHS_AHEAD: Final = 3
SCHEMA: Final = "partitions"
DEFAULT: Final = f"{SCHEMA}.usage_event_default"

_ONE_AT_A_TIME: Final = 0x6D6F6E74  # advisory lock, "mont"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A month in UTC."""

    year: int
    number: int

    @classmethod
    def of(cls, at: datetime) -> "Month":
        """The month that holds an instant."""
        utc = at.astimezone(UTC)
        return cls(utc.year, utc.month)

    @classmethod
    def of_id(cls, request_id: UUID) -> "Month":
        """The month in whose partition an id belongs."""
        return cls.of(_EPOCH + timedelta(milliseconds=request_id.int >> 80))

    @property
    def next(self) -> "Month":
        """The month after."""
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def first_id(self) -> UUID:
        """The smallest id of its first millisecond; no UUIDv7 of the month before reaches it."""
        milliseconds = int(datetime(self.year, self.number, 1, tzinfo=UTC).timestamp()) * 1000
        return UUID(int=milliseconds << 80)

    @property
    def table(self) -> str:
        """Its partition, with the schema."""
        return f"{SCHEMA}.usage_event_{self.year:04}_{self.number:02}"


@dataclass(frozen=True, slots=True)
class Made:
    """``strays``: events of months that are further ahead than any partition; their ids are wrong."""

    months: tuple[Month, ...]
    strays: int


class Partitions:
    """Keeps partitions ahead of the calendar."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def make_ahead(self, at: datetime) -> Made:
        """Make what is missing up to three months after ``at``, and of what came before its partition.

        Raises:
            StoreUnavailable: a lock was not to be had, say; what was made stays, the rest waits.
        """
        month = Month.of(at)
        wanted, made = [month], []
        for _ in range(MONTHS_AHEAD):
            wanted.append(wanted[-1].next)
        end = wanted[-1].next.first_id
        while wanted:
            async with self._database.transaction(OWNER) as connection:
                for month in wanted:
                    if await _missing(connection, month):
                        await _make(connection, month)
                        made.append(month)
                early = await _least_id(connection, end)
                wanted = [] if early is None else [Month.of_id(early)]
        async with self._database.transaction(OWNER) as connection:
            strays = (await connection.execute(text(f"SELECT count(*) FROM {DEFAULT}"))).scalar_one()  # noqa: S608  a name of ours
        return Made(tuple(made), strays)


async def _missing(connection: AsyncConnection, month: Month) -> bool:
    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ONE_AT_A_TIME})
    found = await connection.execute(text("SELECT to_regclass(:table) IS NULL"), {"table": month.table})
    return bool(found.scalar_one())


async def _make(connection: AsyncConnection, month: Month) -> None:
    await connection.execute(text("SET LOCAL statement_timeout = '15min'"))
    for statement in attach(month):
        await connection.execute(text(statement))


async def _least_id(connection: AsyncConnection, end: UUID) -> UUID | None:
    least = text(f"SELECT request_id FROM {DEFAULT} WHERE request_id < :end ORDER BY request_id LIMIT 1")  # noqa: S608  a name of ours
    return (await connection.execute(least, {"end": end})).scalar_one_or_none()


def attach(month: Month, parent: str = "usage_event") -> tuple[str, ...]:
    """Make the partition of a month, with what the default partition holds of it."""
    table, (first, end) = month.table, (month.first_id, month.next.first_id)
    return (
        f"CREATE TABLE {table} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)",
        f"""WITH moved AS (
                DELETE FROM {DEFAULT} WHERE request_id >= '{first}' AND request_id < '{end}' RETURNING *
            ) INSERT INTO {table} SELECT * FROM moved""",  # noqa: S608  names and ids made here
        f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES FROM ('{first}') TO ('{end}')",
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
    )
