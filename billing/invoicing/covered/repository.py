"""Statements on the requests that a document covers.

They are those recorded before the cut of its head and rated before its end, less those that the document
before covers by the same rule. That is: rated in the period and recorded before the cut; and rated before the
period, recorded since the cut before.

The first are rollups, less the events in them that were recorded behind the cut. Those, and the second, were
recorded long after they were rated, because a period is closed by a head some time behind its end (`MARGIN`).
An index knows these few.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.invoicing.lines import Section, Side, Sum
from billing.usage import BUCKETS

# From the end of a period to the cut that may close it; the index `ix_usage_event_tardy` has this width.
MARGIN: Final = timedelta(minutes=15)

_SIDE: Final = ("model", "price_row_id", "price_window", "tier")
_SUMS: Final = ("requests", *BUCKETS, "charge")
_TARDY: Final = "recorded_at - rated_at > interval '15 minutes'"
_ADDED: Final = "recorded_at < (SELECT recorded_before FROM rollup_watermark)"
_MINUTE: Final = "date_bin('1 minute', rated_at, timestamptz 'epoch')"


def _part(table: str, at: str, rows: str, sign: str = "") -> str:
    requests = "requests" if table == "usage_rollup" else "1"
    sums = ", ".join([f"{sign}{requests} AS requests", *(f"{sign}{name} AS {name}" for name in _SUMS[1:])])
    return (
        f"SELECT {at} < :since AS late, {', '.join(_SIDE)}, {sums}"  # noqa: S608  names of columns
        f" FROM {table} WHERE tenant_id = :tenant AND {rows}"
    )


_BY_ROLLUPS: Final = " UNION ALL ".join(
    (
        _part("usage_rollup", "slot", "slot >= :begins AND slot < :until"),
        _part(
            "usage_event",
            "rated_at",
            f"rated_at >= :begins AND rated_at < :until AND {_TARDY} AND recorded_at >= :cut AND {_ADDED}",
            "-",
        ),
        _part(
            "usage_event",
            "rated_at",
            f"rated_at < :begins AND {_TARDY} AND recorded_at >= :cut_before AND recorded_at < :cut",
        ),
    )
)
_COVERED: Final = (
    "tenant_id = :tenant AND rated_at < :until AND recorded_at < :cut"
    " AND NOT (rated_at < :begins AND recorded_at < :cut_before)"
)
_ADDED_UP: Final = text(
    f"SELECT late, {', '.join(_SIDE)}, {', '.join(f'sum({name}) AS {name}' for name in _SUMS)}"  # noqa: S608  likewise
    f" FROM ({_BY_ROLLUPS}) AS parts GROUP BY late, {', '.join(_SIDE)} HAVING sum(requests) <> 0"
)
_DERIVED: Final = text(
    f"SELECT rated_at < :since AS late, {', '.join(_SIDE)}, min(rated_at) AS first, max(rated_at) AS last,"  # noqa: S608  likewise
    f" count(*) AS requests, {', '.join(f'sum({name}) AS {name}' for name in _SUMS[1:])}"
    f" FROM usage_event WHERE {_COVERED} GROUP BY late, {', '.join(_SIDE)}, {_MINUTE}"
)
_PREPAID: Final = text(f"""
    SELECT coalesce(-sum(entry.amount), 0) FROM usage_event AS event
    JOIN ledger_entry AS entry ON entry.transaction_id = event.request_id
    WHERE entry.account IN ('granted', 'topped_up') AND {_COVERED.replace("tenant_id", "event.tenant_id", 1)}
""")  # noqa: S608  likewise
_MODE_CHANGED: Final = text("""
    SELECT EXISTS (
        SELECT FROM audit_event WHERE tenant_id = :tenant AND action = 'credit.terms'
        AND before ->> 'billing_mode' IS DISTINCT FROM after ->> 'billing_mode'
    )
""")
_RECORDED: Final = text(
    "SELECT EXISTS (SELECT FROM usage_event WHERE recorded_at >= :since AND recorded_at < :until)"
)


@dataclass(frozen=True, slots=True)
class Covered:
    """What decides which requests a document of a tenant covers, and which of them are late.

    ``begins`` is the end of the document before, ``cut_before`` the cut of its head; both are the epoch where
    there is none.
    """

    tenant_id: str
    since: datetime
    until: datetime
    cut: datetime
    begins: datetime
    cut_before: datetime

    @property
    def values(self) -> dict[str, Any]:
        """As statements take them."""
        return {
            "tenant": self.tenant_id,
            **{name: getattr(self, name) for name in ("since", "until", "cut", "begins", "cut_before")},
        }


@dataclass(frozen=True, slots=True)
class Rated:
    """Requests of one side that were rated in one minute, between two instants of it."""

    side: Side
    first: datetime
    last: datetime
    total: Sum


async def select_watermark(connection: AsyncConnection) -> datetime:
    """Rollups hold what was recorded before; it only moves forward."""
    statement = text("SELECT recorded_before FROM rollup_watermark")
    watermark: datetime = (await connection.execute(statement)).scalar_one()
    return watermark


async def select_recorded(connection: AsyncConnection, since: datetime, until: datetime) -> bool:
    """Whether anything was recorded in ``[since, until)``, of any tenant."""
    found = await connection.execute(_RECORDED, {"since": since, "until": until})
    return bool(found.scalar_one())


async def select_sums(connection: AsyncConnection, covered: Covered) -> dict[Side, Sum]:
    """From rollups, which must hold all before the cut, and from the events that were recorded late."""
    found = (await connection.execute(_ADDED_UP, covered.values)).mappings()
    return {_side(row): _sum(row) for row in found}


async def select_rated(connection: AsyncConnection, covered: Covered) -> list[Rated]:
    """From every event, by minutes: prices and their windows change on whole ones. Takes minutes itself."""
    await connection.execute(text("SET LOCAL statement_timeout = '15min'"))
    found = (await connection.execute(_DERIVED, covered.values)).mappings()
    return [Rated(_side(row), row["first"], row["last"], _sum(row)) for row in found]


async def select_prepaid(connection: AsyncConnection, covered: Covered) -> int:
    """What of these requests was drawn from credit as it was used; read from the ledger, entry by entry."""
    await connection.execute(text("SET LOCAL statement_timeout = '15min'"))
    return int((await connection.execute(_PREPAID, covered.values)).scalar_one())


async def select_mode_changed(connection: AsyncConnection, tenant_id: str) -> bool:
    """Whether a tenant has ever paid in another way than it does now."""
    return bool((await connection.execute(_MODE_CHANGED, {"tenant": tenant_id})).scalar_one())


def _side(row: Any) -> Side:
    section: Section = "late" if row["late"] else "period"
    return Side(section, *(row[name] for name in _SIDE))


def _sum(row: Any) -> Sum:
    return Sum(**{name: int(row[name]) for name in _SUMS})
