"""Statements on notices, endpoints and deliveries."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, RowMapping, Select, delete, func, literal, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.db.pages import Page, paged
from billing.db.tables import (
    notice,
    webhook_attempt,
    webhook_delivery,
    webhook_endpoint,
    webhook_secret,
)
from billing.interval import Interval
from billing.notify.endpoint import Attempt, Delivery, Due, Endpoint, State
from billing.notify.notice import KeptNotice, Notice

_NOTICE: Final = ("tenant_id", "kind", "at", "facts", "dedupe")
_CHANGED: Final = ("url", "enabled", "disabled_for", "failing_since")
_ATTEMPT: Final = ("number", "at", "duration_ms", "status", "error")
_TEST: Final = "webhook.test"  # of one endpoint, and told to no other

_CLAIM: Final = text("""
    WITH due AS (
        SELECT notice_id, endpoint_id FROM (
            SELECT delivery.notice_id, delivery.endpoint_id, delivery.due_at,
                row_number() OVER (PARTITION BY delivery.endpoint_id ORDER BY delivery.due_at) AS place
            FROM webhook_delivery AS delivery JOIN webhook_endpoint AS endpoint ON endpoint.id = endpoint_id
            WHERE delivery.state = 'pending' AND delivery.due_at <= :at AND endpoint.enabled
        ) AS of_endpoint
        WHERE place <= :of_endpoint_most ORDER BY due_at LIMIT :most
    )
    UPDATE webhook_delivery AS delivery SET due_at = :until FROM due
    WHERE delivery.notice_id = due.notice_id AND delivery.endpoint_id = due.endpoint_id
        AND delivery.state = 'pending' AND delivery.due_at <= :at
    RETURNING delivery.notice_id, delivery.endpoint_id
""")


@dataclass(frozen=True, slots=True)
class Claim:
    """What is due ``at``, at most ``most``, is nobody else's ``until`` then."""

    at: datetime
    until: datetime
    most: int
    of_endpoint_most: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a delivery is."""

    state: State
    due_at: datetime
    tries: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be delivered ``at`` now, once more or for the first time: one notice, or an interval's."""

    at: datetime
    notice_id: str | None = None
    interval: Interval | None = None


async def insert_notice(connection: AsyncConnection, kept: KeptNotice) -> bool:
    """False when its occasion has been told. Waits for a transaction that is about to tell it."""
    values: dict[str, Any] = {name: getattr(kept.notice, name) for name in _NOTICE}
    statement = (
        insert(notice)
        .values(id=kept.id, **values)
        .on_conflict_do_nothing(index_elements=["tenant_id", "dedupe"])
        .returning(notice.c.id)
    )
    return (await connection.execute(statement)).first() is not None


async def insert_deliveries(connection: AsyncConnection, kept: KeptNotice) -> None:
    """One for each enabled endpoint of the tenant that wants the kind, due at once."""
    endpoint, told = webhook_endpoint.c, kept.notice
    wanting = select(literal(kept.id), endpoint.tenant_id, literal(told.at), endpoint.id).where(
        endpoint.tenant_id == told.tenant_id,
        endpoint.enabled,
        or_(endpoint.kinds.is_(None), endpoint.kinds.contains([told.kind])),
    )
    names = ["notice_id", "tenant_id", "due_at", "endpoint_id"]
    await connection.execute(insert(webhook_delivery).from_select(names, wanting))


async def want_again(connection: AsyncConnection, endpoint: Endpoint, wanted: Wanted) -> int:
    """Make or reset deliveries to an endpoint; returns how many."""
    told = notice.c
    chosen = select(told.id, told.tenant_id, literal(wanted.at), literal(endpoint.id)).where(
        told.tenant_id == endpoint.tenant_id
    )
    if wanted.notice_id is not None:
        chosen = chosen.where(told.id == wanted.notice_id)
    if wanted.interval is not None:
        chosen = chosen.where(told.at >= wanted.interval.since, told.at < wanted.interval.until)
        chosen = chosen.where(told.kind != _TEST)
        if endpoint.kinds is not None:
            chosen = chosen.where(told.kind.in_(sorted(endpoint.kinds)))
    statement = (
        insert(webhook_delivery)
        .from_select(["notice_id", "tenant_id", "due_at", "endpoint_id"], chosen)
        .on_conflict_do_update(
            index_elements=["notice_id", "endpoint_id"],
            set_={"state": "pending", "due_at": wanted.at, "tries": 0},
        )
        .returning(webhook_delivery.c.notice_id)
    )
    return len((await connection.execute(statement)).all())


async def select_notices(connection: AsyncConnection, tenant_id: str, page: Page) -> list[KeptNotice]:
    """Oldest first."""
    statement = (
        select(notice).where(notice.c.tenant_id == tenant_id).order_by(notice.c.id).limit(page.rows_max)
    )
    if page.after is not None:
        statement = statement.where(notice.c.id > page.after)
    return [_kept(row) for row in (await connection.execute(statement)).mappings()]


async def insert_endpoint(connection: AsyncConnection, row: Endpoint) -> None:
    """Refused by fk_webhook_endpoint_tenant_id when there is no such tenant."""
    kinds = None if row.kinds is None else sorted(row.kinds)
    values = {name: getattr(row, name) for name in ("id", "tenant_id", "created_at", *_CHANGED)}
    await connection.execute(insert(webhook_endpoint).values(kinds=kinds, **values))


async def select_endpoints(connection: AsyncConnection, tenant_id: str | None, page: Page) -> list[Endpoint]:
    """Of one tenant, or all; oldest first."""
    statement = paged(select(webhook_endpoint), webhook_endpoint, page)
    if tenant_id is not None:
        statement = statement.where(webhook_endpoint.c.tenant_id == tenant_id)
    return [_endpoint(row) for row in (await connection.execute(statement)).mappings()]


async def select_endpoint(
    connection: AsyncConnection, endpoint_id: str, tenant_id: str | None
) -> Endpoint | None:
    """By id."""
    return await _one_endpoint(connection, _by_id(endpoint_id, tenant_id))


async def lock_endpoint(
    connection: AsyncConnection, endpoint_id: str, tenant_id: str | None = None
) -> Endpoint | None:
    """By id, before any of its deliveries is locked. Notices go on being told to it."""
    return await _one_endpoint(connection, _by_id(endpoint_id, tenant_id).with_for_update(key_share=True))


async def update_endpoint(connection: AsyncConnection, row: Endpoint) -> None:
    """An endpoint that is locked."""
    kinds = None if row.kinds is None else sorted(row.kinds)
    values = {name: getattr(row, name) for name in _CHANGED}
    await connection.execute(
        update(webhook_endpoint).where(webhook_endpoint.c.id == row.id).values(kinds=kinds, **values)
    )


async def delete_endpoint(connection: AsyncConnection, endpoint_id: str) -> None:
    """With its secrets, deliveries and attempts."""
    await connection.execute(delete(webhook_endpoint).where(webhook_endpoint.c.id == endpoint_id))


async def insert_secret(
    connection: AsyncConnection, endpoint: Endpoint, sealed: tuple[str, str], at: datetime
) -> None:
    """The present one, by its name and sealed under it; those before have an end."""
    name, secret = sealed
    await connection.execute(
        insert(webhook_secret).values(
            id=name, tenant_id=endpoint.tenant_id, endpoint_id=endpoint.id, sealed=secret, created_at=at
        )
    )


async def end_secrets(connection: AsyncConnection, endpoint_id: str, ends_at: datetime) -> None:
    """All there are work until then at most."""
    await connection.execute(
        update(webhook_secret)
        .where(webhook_secret.c.endpoint_id == endpoint_id)
        .values(ends_at=func.least(webhook_secret.c.ends_at, ends_at))  # LEAST passes over null
    )


async def claim_due(connection: AsyncConnection, claim: Claim) -> list[Due]:
    """Lease what is due, the longest due first, and tell all it takes to deliver it."""
    values = {
        "at": claim.at,
        "until": claim.until,
        "most": claim.most,
        "of_endpoint_most": claim.of_endpoint_most,
    }
    claimed = [tuple(row) for row in await connection.execute(_CLAIM, values)]
    if not claimed:
        return []
    told = await connection.execute(select(notice).where(notice.c.id.in_({one for one, _ in claimed})))
    kept = {row["id"]: _kept(row) for row in told.mappings()}
    endpoint_ids = {one for _, one in claimed}
    urls = await connection.execute(
        select(webhook_endpoint.c.id, webhook_endpoint.c.url).where(webhook_endpoint.c.id.in_(endpoint_ids))
    )
    url_of = {row.id: row.url for row in urls}
    sealed = await _sealed(connection, endpoint_ids, claim.at)
    return [
        Due(kept[notice_id], endpoint_id, url_of[endpoint_id], tuple(sealed[endpoint_id]))
        for notice_id, endpoint_id in claimed
    ]


async def lock_delivery(connection: AsyncConnection, notice_id: str, endpoint_id: str) -> Progress | None:
    """None where it is gone."""
    c = webhook_delivery.c
    statement = (
        select(c.state, c.due_at, c.tries, c.attempts)
        .where(c.notice_id == notice_id, c.endpoint_id == endpoint_id)
        .with_for_update()
    )
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else Progress(**row)


async def insert_attempt(connection: AsyncConnection, due: Due, made: Attempt) -> None:
    """Behind those before."""
    await connection.execute(
        insert(webhook_attempt).values(
            notice_id=due.kept.id,
            endpoint_id=due.endpoint_id,
            tenant_id=due.kept.notice.tenant_id,
            **{name: getattr(made, name) for name in _ATTEMPT},
        )
    )


async def update_delivery(connection: AsyncConnection, due: Due, progress: Progress) -> None:
    """A delivery that is locked."""
    c = webhook_delivery.c
    await connection.execute(
        update(webhook_delivery)
        .where(c.notice_id == due.kept.id, c.endpoint_id == due.endpoint_id)
        .values(
            state=progress.state, due_at=progress.due_at, tries=progress.tries, attempts=progress.attempts
        )
    )


async def give_up(connection: AsyncConnection, endpoint_id: str) -> None:
    """Whatever is on its way to an endpoint that is locked."""
    await connection.execute(
        update(webhook_delivery)
        .where(webhook_delivery.c.endpoint_id == endpoint_id, webhook_delivery.c.state == "pending")
        .values(state="given_up")
    )


async def select_deliveries(connection: AsyncConnection, endpoint_id: str, page: Page) -> list[Delivery]:
    """Newest notice first, with their attempts."""
    c = webhook_delivery.c
    statement = (
        select(c.notice_id, notice.c.kind, notice.c.at, c.endpoint_id, c.state, c.due_at)
        .join(notice, notice.c.id == c.notice_id)
        .where(c.endpoint_id == endpoint_id)
        .order_by(c.notice_id.desc())
        .limit(page.rows_max)
    )
    if page.after is not None:
        statement = statement.where(c.notice_id < page.after)
    rows = (await connection.execute(statement)).mappings().all()
    made = webhook_attempt.c
    attempts: defaultdict[str, list[Attempt]] = defaultdict(list)
    found = await connection.execute(
        select(made.notice_id, *(made[name] for name in _ATTEMPT))
        .where(made.endpoint_id == endpoint_id, made.notice_id.in_([row["notice_id"] for row in rows]))
        .order_by(made.number)
    )
    for notice_id, *attempt in found:
        attempts[notice_id].append(Attempt(*attempt))
    return [Delivery(**row, attempts=tuple(attempts[row["notice_id"]])) for row in rows]


async def delete_endpoints(connection: AsyncConnection, tenant_id: str) -> int:
    """All of a tenant, with their secrets, deliveries and attempts; returns how many there were."""
    c = webhook_endpoint.c
    statement = delete(webhook_endpoint).where(c.tenant_id == tenant_id).returning(c.id)
    return len((await connection.execute(statement)).all())


async def delete_notices(connection: AsyncConnection, tenant_id: str) -> int:
    """All that a tenant was told; returns how many there were."""
    statement = delete(notice).where(notice.c.tenant_id == tenant_id).returning(notice.c.id)
    return len((await connection.execute(statement)).all())


async def _sealed(
    connection: AsyncConnection, endpoint_ids: Iterable[str], at: datetime
) -> dict[str, list[tuple[str, str]]]:
    """Secrets that work, the newest first."""
    c = webhook_secret.c
    rows = await connection.execute(
        select(c.endpoint_id, c.id, c.sealed)
        .where(c.endpoint_id.in_(endpoint_ids), or_(c.ends_at.is_(None), c.ends_at > at))
        .order_by(c.ends_at.desc().nulls_first(), c.id)
    )
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for endpoint_id, name, sealed in rows:
        found[endpoint_id].append((name, sealed))
    return found


def _by_id(endpoint_id: str, tenant_id: str | None) -> Select[Any]:
    wanted: ColumnElement[bool] = webhook_endpoint.c.id == endpoint_id
    if tenant_id is not None:
        wanted &= webhook_endpoint.c.tenant_id == tenant_id
    return select(webhook_endpoint).where(wanted)


async def _one_endpoint(connection: AsyncConnection, statement: Select[Any]) -> Endpoint | None:
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else _endpoint(row)


def _endpoint(row: RowMapping) -> Endpoint:
    kinds = None if row["kinds"] is None else frozenset(row["kinds"])
    return Endpoint(**{**row, "kinds": kinds})


def _kept(row: RowMapping) -> KeptNotice:
    return KeptNotice(row["id"], Notice(**{name: row[name] for name in _NOTICE}))
