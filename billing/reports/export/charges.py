"""Charges added up for FOCUS, each group beside the public price of its time."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from billing.db.transaction import Connection
from billing.errors import PriceMissing
from billing.interval import Interval, zone_of
from billing.money import Femto
from billing.pricing.book import PriceBook, PriceRow
from billing.reports import repository
from billing.reports.export.order import ExportOrder
from billing.reports.export.repository import select_span
from billing.reports.selection import NAMED_MAX
from billing.reports.usage_total import TOKENS, Dimension, UsageQuestion, UsageTotal

GROUP: Final[tuple[Dimension, ...]] = (
    *("tenant", "project", "key", "model", "traffic_class", "price_row", "window", "tier"),
)

_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Listed:
    """The public price of some charges: the row, and the window that was open."""

    row: PriceRow
    window: str


@dataclass(frozen=True, slots=True)
class ChargeGroup:
    """Charges of one step of time; ``listed`` None: the price they were rated by is public itself."""

    total: UsageTotal
    listed: Listed | None


async def charge_groups(
    connection: Connection, order: ExportOrder, book: PriceBook
) -> AsyncIterator[list[ChargeGroup]]:
    """All charges of an order, a day at a time, so that no more than a day is held.

    Charges by a price of a tenant's own or of its plan are told apart by what the public price of their
    minute was, so that each group has one. Where the model had none in that currency, their own stands in.
    """
    span = await select_span(connection, order.question)
    if span is None:
        return
    public = {row.id for row in book.rows if row.tenant_id is None and row.plan is None}
    for day in _days(order.interval, span, zone_of(order.zone)):
        question = replace(order.question, interval=day, by=(*GROUP, order.step, "month"))
        totals = await repository.totals_within(connection, question)
        groups = [ChargeGroup(total, None) for total in totals if total.group["price_row"] in public]
        own = sorted({str(total.group["price_row"]) for total in totals} - public)
        for first in range(0, len(own), NAMED_MAX):
            only = replace(order.only, price_rows=tuple(own[first : first + NAMED_MAX]))
            groups += await _beside_public(connection, replace(question, only=only), book)
        yield groups


async def _beside_public(
    connection: Connection, question: UsageQuestion, book: PriceBook
) -> list[ChargeGroup]:
    folded: dict[tuple[object, ...], ChargeGroup] = {}
    for hour in _hours(question.interval):
        by_minute = replace(question, interval=hour, by=(*question.by, "minute"))
        for total in await repository.totals_within(connection, by_minute):
            listed = _listed(book, total)
            group = {one: total.group[one] for one in question.by}
            key = (*group.values(), total.currency, listed and listed.row.id, listed and listed.window)
            known = folded.get(key)
            summed = replace(total, group=group) if known is None else _added(known.total, total)
            folded[key] = ChargeGroup(summed, listed)
    return list(folded.values())


def _listed(book: PriceBook, total: UsageTotal) -> Listed | None:
    minute = total.group["minute"]
    assert isinstance(minute, datetime)
    try:
        row = book.row(str(total.group["model"]), total.currency, minute)
    except PriceMissing:
        return None
    return Listed(row, row.rates_at(minute)[0])


def _added(one: UsageTotal, other: UsageTotal) -> UsageTotal:
    sums = {name: getattr(one, name) + getattr(other, name) for name in ("requests", *TOKENS)}
    return replace(one, charge=Femto(one.charge + other.charge), **sums)


def _days(interval: Interval, span: Sequence[datetime], zone: ZoneInfo) -> Iterator[Interval]:
    """The days of a zone that hold anything, cut to the interval."""
    first, last = span
    day = first.astimezone(zone).date()
    while day <= last.astimezone(zone).date():
        begins, ends = (
            datetime.combine(each, time.min, zone).astimezone(UTC) for each in (day, day + timedelta(days=1))
        )
        yield Interval(max(begins, interval.since), min(ends, interval.until))
        day += timedelta(days=1)


def _hours(interval: Interval) -> Iterator[Interval]:
    since = interval.since
    while since < interval.until:
        until = min(since + _HOUR, interval.until)
        yield Interval(since, until)
        since = until
