"""Statements that read usage events, and that add them up."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import RowMapping, func, select, text
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.columns import FemtoNumeric
from billing.db.tables import (
    api_key,
    attestation,
    balance,
    price_row,
    price_tier,
    price_window,
    tenant,
    usage_event,
    usage_quarantine,
    usage_rollup,
)
from billing.interval import Interval
from billing.money import Femto
from billing.reports.selection import COLUMN_OF as SELECTED
from billing.reports.selection import Selection
from billing.reports.usage_row import OwedRow, QuarantinedRow, UsageFilter, UsageRow, Use, UseFilter
from billing.reports.usage_total import COLUMN_OF, STRETCHES, TOKENS, UsageQuestion, UsageTotal

_KEY: Final = tuple(column.name for column in usage_rollup.primary_key)
_OF_EVENT: Final = (*(name for name in _KEY if name != "slot"), "currency")
_SUMS: Final = (*TOKENS, "charge")

_TOUCHED: Final = text("""
    SELECT DISTINCT date_bin('15 minutes', rated_at, 'epoch') FROM usage_event
    WHERE recorded_at >= :since AND recorded_at < :until
""")
# Slot by slot, each by the index on rated_at; a plain join would read all events recorded before. Sorted, so
# that two of them never deadlock.
_ADD_UP: Final = text(f"""
    INSERT INTO usage_rollup (slot, {", ".join(_OF_EVENT)}, requests, {", ".join(_SUMS)})
    SELECT slot, {", ".join(_OF_EVENT)}, requests, {", ".join(_SUMS)}
    FROM unnest(CAST(:slots AS timestamptz[])) AS slot CROSS JOIN LATERAL (
        SELECT {", ".join(_OF_EVENT)}, count(*) AS requests,
            {", ".join(f"sum({name}) AS {name}" for name in _SUMS)}
        FROM usage_event
        WHERE rated_at >= slot AND rated_at < slot + interval '15 minutes' AND recorded_at < :before
        GROUP BY {", ".join(_OF_EVENT)}
    ) AS of_slot
    ORDER BY {", ".join(_KEY)}
    ON CONFLICT ({", ".join(_KEY)}) DO UPDATE
    SET {", ".join(f"{name} = excluded.{name}" for name in ("requests", *_SUMS))}
""")  # noqa: S608  names of columns

# Rollups of whole slots, the events at either edge, and all that the rollups do not hold yet.
_PARTS: Final = (
    ("usage_rollup", "slot", "slot >= :first AND slot < :end"),
    (
        "usage_event",
        "rated_at",
        "rated_at >= :since AND rated_at < :edge AND recorded_at < :watermark",
    ),
    ("usage_event", "rated_at", "rated_at >= :end AND rated_at < :until AND recorded_at < :watermark"),
    ("usage_event", "rated_at", "rated_at >= :since AND rated_at < :until AND recorded_at >= :watermark"),
)
_EVENTS_ALONE: Final = (("usage_event", "rated_at", "rated_at >= :since AND rated_at < :until"),)
_PROJECTS: Final = "JOIN (SELECT id AS key_id, project_id FROM api_key) AS home USING (key_id)"


async def select_usage(connection: AsyncConnection, usage_filter: UsageFilter) -> list[UsageRow]:
    """Newest last."""
    event = usage_event.c
    statement = (
        select(
            event.request_id,
            tenant.c.name.label("tenant"),
            api_key.c.name.label("key"),
            *(event[name] for name in ("model", "rated_at", "status")),
            *(event[name] for name in ("cache_hit", "cache_owed", "cache_write", "cache_miss", "output")),
            *(
                event[name]
                for name in ("charge", "currency", "tenant_id", "key_id", "price_row_id", "price_window")
            ),
        )
        .join(tenant, tenant.c.id == event.tenant_id)
        .join(api_key, api_key.c.id == event.key_id)
        .order_by(event.rated_at.desc(), event.request_id.desc())
        .limit(usage_filter.limit)
    )
    if usage_filter.tenant_id is not None:
        statement = statement.where(event.tenant_id == usage_filter.tenant_id)
    if usage_filter.since is not None:
        statement = statement.where(event.rated_at >= usage_filter.since)
    if usage_filter.until is not None:
        statement = statement.where(event.rated_at < usage_filter.until)
    newest_first = [UsageRow(**row) for row in (await connection.execute(statement)).mappings()]
    return newest_first[::-1]


async def select_use(connection: AsyncConnection, use_filter: UseFilter) -> Use:
    """In one statement: sum and version are of one snapshot, and settlement raises it with its events."""
    event = usage_event.c
    version = select(balance.c.version).where(balance.c.tenant_id == use_filter.tenant_id).scalar_subquery()
    tokens = event.cache_hit + event.cache_owed + event.cache_write + event.cache_miss + event.output
    statement = select(
        func.coalesce(func.sum(event.charge, type_=FemtoNumeric), 0, type_=FemtoNumeric).label("charge"),
        func.coalesce(func.sum(tokens), 0).label("tokens"),
        func.coalesce(version, 0).label("balance_version"),
    ).where(
        event.tenant_id == use_filter.tenant_id,
        event.rated_at >= use_filter.since,
        event.rated_at < use_filter.until,
    )
    if use_filter.model is not None:
        statement = statement.where(event.model == use_filter.model)
    if use_filter.level == "key":
        statement = statement.where(event.key_id == use_filter.owner_id)
    elif use_filter.level == "project":
        of_project = select(api_key.c.id).where(api_key.c["project_id"] == use_filter.owner_id)
        statement = statement.where(event.key_id.in_(of_project))
    row = (await connection.execute(statement)).one()
    return Use(Femto(row.charge), int(row.tokens), row.balance_version)


async def select_quarantined(connection: AsyncConnection, usage_filter: UsageFilter) -> list[QuarantinedRow]:
    """Newest last; the filter is on the instant of recording."""
    c = usage_quarantine.c
    documents = aggregate_order_by(attestation.c.document, attestation.c.attempt, attestation.c.kind)
    journaled = (
        select(func.array_to_string(func.array_agg(documents), "\n"))
        .where(attestation.c.request_id == c.request_id)
        .scalar_subquery()
    )
    statement = (
        select(
            c.request_id,
            func.coalesce(tenant.c.name, c.tenant_id).label("tenant"),
            c.recorded_at,
            c.reason,
            func.coalesce(c.attestation, journaled).label("attestation"),
        )
        .outerjoin(tenant, tenant.c.id == c.tenant_id)
        .order_by(c.recorded_at.desc(), c.request_id.desc())
        .limit(usage_filter.limit)
    )
    if usage_filter.tenant_id is not None:
        statement = statement.where(c.tenant_id == usage_filter.tenant_id)
    if usage_filter.since is not None:
        statement = statement.where(c.recorded_at >= usage_filter.since)
    if usage_filter.until is not None:
        statement = statement.where(c.recorded_at < usage_filter.until)
    newest_first = [QuarantinedRow(**row) for row in (await connection.execute(statement)).mappings()]
    return newest_first[::-1]


async def select_owed(connection: AsyncConnection, recorded: Interval | None = None) -> list[OwedRow]:
    """By tenant and currency, at the rates that rated each event: its row's or window's, or their tier's.

    Of the events that were recorded in the interval, or of all.
    """
    event = usage_event.c
    position, of_window = (
        select(each)
        .where(price_window.c.price_row_id == event.price_row_id, price_window.c.name == event.price_window)
        .order_by(price_window.c.position)
        .limit(1)
        .correlate(usage_event)
        .scalar_subquery()
        for each in (price_window.c.position, price_window.c.miss - price_window.c.hit)
    )
    of_tier = (
        select(price_tier.c.miss - price_tier.c.hit)
        .where(
            price_tier.c.price_row_id == event.price_row_id,
            price_tier.c.tier == event.tier,
            price_tier.c.position == func.coalesce(position, -1),
        )
        .correlate(usage_event)
        .scalar_subquery()
    )
    a_token = func.coalesce(of_tier, of_window, price_row.c.miss - price_row.c.hit)
    statement = (
        select(
            event.tenant_id,
            event.currency,
            func.sum(event.cache_owed).label("tokens"),
            func.sum(event.cache_owed * a_token, type_=FemtoNumeric).label("cost"),
        )
        .join(price_row, price_row.c.id == event.price_row_id)
        .where(event.cache_owed > 0)
        .group_by(event.tenant_id, event.currency)
        .order_by(event.tenant_id)
    )
    if recorded is not None:
        statement = statement.where(event.recorded_at >= recorded.since, event.recorded_at < recorded.until)
    return [OwedRow(**row) for row in (await connection.execute(statement)).mappings()]


async def lock_watermark(connection: AsyncConnection) -> datetime:
    """The watermark, until the transaction ends."""
    statement = text("SELECT recorded_before FROM rollup_watermark FOR UPDATE")
    watermark: datetime = (await connection.execute(statement)).scalar_one()
    return watermark


async def move_watermark(connection: AsyncConnection, to: datetime) -> None:
    """Rollups now hold just the events recorded before ``to``."""
    await connection.execute(text("UPDATE rollup_watermark SET recorded_before = :to"), {"to": to})


async def select_first_recorded(connection: AsyncConnection) -> datetime | None:
    """When the first of all events was recorded."""
    found = await connection.execute(select(func.min(usage_event.c.recorded_at)))
    first: datetime | None = found.scalar_one()
    return first


async def select_touched(connection: AsyncConnection, since: datetime, until: datetime) -> list[datetime]:
    """Slots of the events that were recorded in ``[since, until)``."""
    return list((await connection.execute(_TOUCHED, {"since": since, "until": until})).scalars())


async def add_up(connection: AsyncConnection, slots: Sequence[datetime], before: datetime) -> None:
    """Add up all events of these slots that were recorded before an instant, whatever was there."""
    if slots:
        await connection.execute(_ADD_UP, {"slots": list(slots), "before": before})


async def select_totals(connection: AsyncConnection, question: UsageQuestion) -> list[UsageTotal]:
    """In the order of the dimensions, all of one instant."""
    await begin_snapshot(connection)
    return await totals_within(connection, question)


async def begin_snapshot(connection: AsyncConnection) -> None:
    """Have all that is read from here on be of one instant; the first statement of its transaction."""
    await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))


async def totals_within(connection: AsyncConnection, question: UsageQuestion) -> list[UsageTotal]:
    """As `select_totals`, of the transaction's instant."""
    statement, values = await totals_query(connection, question)
    return [_total(question, row) for row in (await connection.execute(text(statement), values)).mappings()]


async def totals_query(connection: AsyncConnection, question: UsageQuestion) -> tuple[str, dict[str, Any]]:
    """The one statement behind charts, tables and exports, with its parameters, to be run within a snapshot.

    Its columns: of each dimension, ids before names; then requests, tokens, charge and currency.
    """
    watermark = (await connection.execute(text("SELECT recorded_before FROM rollup_watermark"))).scalar_one()
    interval, slots = question.interval, question.interval.slots
    values: dict[str, Any] = {
        "since": interval.since,
        "until": interval.until,
        "first": slots.since,
        "edge": min(slots.since, interval.until),
        "end": slots.until,
        "watermark": watermark,
        "zone": question.zone,
        "tenant": question.tenant_id,
        **{kind: list(names) for kind, names in question.only.named()},
    }
    statement = _totals(question)
    if question.groups_max is not None:
        statement += f" LIMIT {question.groups_max + 1:d}"
    return statement, {name: values[name] for name in text(statement).compile().params}


def selected(only: Selection, tenant_id: str | None) -> str:
    """Conditions on the columns of events, and of rollups: parameters by kind, and ``tenant``."""
    conditions = "" if tenant_id is None else " AND tenant_id = :tenant"
    for kind, _ in only.named():
        if kind == "projects":
            conditions += " AND key_id IN (SELECT id FROM api_key WHERE project_id = ANY(:projects))"
        else:
            conditions += f" AND {SELECTED[kind]} = ANY(:{kind})"
    return conditions


def _totals(question: UsageQuestion) -> str:
    columns = [COLUMN_OF[one] for one in question.by if one in COLUMN_OF]
    known = ["key_id" if name == "project_id" else name for name in columns]
    home = _PROJECTS if "project_id" in columns else ""
    stretches = [one for one in STRETCHES if one in question.by]
    own = selected(question.only, question.tenant_id)
    parts = " UNION ALL ".join(
        f"SELECT {', '.join([*dict.fromkeys(known), 'currency'])}, {at} AS at,"  # noqa: S608  names of columns
        f" {'requests' if table == 'usage_rollup' else '1 AS requests'}, {', '.join(_SUMS)}"
        f" FROM {table} WHERE {rows}{own}"
        for table, at, rows in (_EVENTS_ALONE if question.needs_events else _PARTS)
    )
    begins = [f"date_trunc('{one}', at, :zone) AS \"{one}\"" for one in stretches]
    groups = ", ".join([*columns, *(f'"{one}"' for one in stretches), "currency"])
    names = dict(_names(columns))
    return (
        f"WITH parts AS ({parts}), totals AS ("  # noqa: S608  likewise
        f" SELECT {', '.join([*columns, *begins, 'currency'])}, CAST(sum(requests) AS bigint) AS requests,"
        f" {', '.join(f'sum({name}) AS {name}' for name in _SUMS)} FROM parts {home} GROUP BY {groups}"
        f") SELECT totals.*{''.join(names)} FROM totals {' '.join(names.values())} ORDER BY {groups}"
    )


def _names(columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is selected beside ids, and the join that it comes from."""
    if "tenant_id" in columns:
        yield ", tenant.name AS tenant_name", "JOIN tenant ON tenant.id = totals.tenant_id"
    if "project_id" in columns:
        yield ", project.name AS project_name", "JOIN project ON project.id = totals.project_id"
    if "key_id" in columns:
        yield ", api_key.name AS key_name", "JOIN api_key ON api_key.id = totals.key_id"


def _total(question: UsageQuestion, row: RowMapping) -> UsageTotal:
    return UsageTotal(
        group={one: row[COLUMN_OF.get(one, one)] for one in question.by},
        names={one: row[f"{one}_name"] for one in question.by if one in ("tenant", "project", "key")},
        currency=row["currency"],
        charge=Femto(int(row["charge"])),
        **{name: int(row[name]) for name in ("requests", *TOKENS)},
    )
