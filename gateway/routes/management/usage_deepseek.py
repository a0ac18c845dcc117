"""A month as CSV in the shape of what DeepSeek's platform has its users download: ``amount`` and ``cost``.

Modelled on exports of 2026 that their owners published; DeepSeek describes them nowhere. Days are of UTC, a
price is for one token. ``api_key`` holds the key's id, where DeepSeek has a masked secret. What a broken
promise owes stands with the hits, whose price it has. Which wallet paid is not told (``wallet_type`` is
empty): credit is drawn request by request.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Final

from litestar import Response, get
from litestar.params import FromPath, QueryParameter

from billing.errors import ReportInvalid
from billing.interval import Interval
from billing.money import Femto, decimal_of
from billing.reports.bucket_cost import PriceRows
from billing.reports.export.column import Column
from billing.reports.export.delimited import header
from billing.reports.export.rows import Row, written
from billing.reports.usage_total import UsageQuestion, UsageTotal
from billing.usage import Bucket
from gateway import paths
from gateway.desk import AnyRequest, desk_of
from gateway.routes.management import edge

ROWS_MAX: Final = 50_000
AMOUNT: Final = (
    Column("user_id", "id"),
    Column("utc_date", "id"),
    Column("model", "name"),
    Column("api_key_name", "name"),
    Column("api_key", "id"),
    Column("type", "id"),
    Column("price", "amount"),
    Column("amount", "integer"),
)
COST: Final = (
    Column("user_id", "id"),
    Column("utc_date", "id"),
    Column("model", "name"),
    Column("wallet_type", "id", nullable=True),
    Column("cost", "amount"),
    Column("currency", "id"),
)
TYPES: Final[dict[Bucket, str]] = {
    "cache_hit": "input_cache_hit_tokens",
    "cache_owed": "input_cache_hit_tokens",
    "cache_write": "input_cache_write_tokens",
    "cache_miss": "input_cache_miss_tokens",
    "output": "output_tokens",
}

Month = Annotated[str | None, QueryParameter(pattern=r"^[0-9]{4}-[0-9]{2}$", description="Such as 2026-12.")]


@get(list(paths.MONTHLY_USAGE))
async def show_month(request: AnyRequest, file: FromPath[str], month: Month = None) -> Response[bytes]:
    """Tell a month, the present one unless said: what was used, or what it cost."""
    grant = edge.manager(request)
    if file not in ("amount", "cost"):
        raise ReportInvalid("file", f"{file!r} is not one of amount, cost")
    first = (await desk_of(request).organization.clock.now()).date() if month is None else _first(month)
    first = first.replace(day=1)
    last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    columns = AMOUNT if file == "amount" else COST
    totals = await desk_of(request).organization.reports.totals(
        UsageQuestion(
            Interval.of_days(first, last, "UTC"),
            ("day", "model", "key", "price_row", "window", "tier") if file == "amount" else ("day", "model"),
            tenant_id=grant.tenant_id,
            groups_max=ROWS_MAX,
        )
    )
    prices = PriceRows(desk_of(request).prices.book)
    rows = _amounts(totals, prices, grant.tenant_id) if file == "amount" else _costs(totals, grant.tenant_id)
    body = written(columns, "csv", rows, line_end="\r\n")
    return Response(
        header(columns, None) + body,
        media_type="text/csv",
        headers={"content-disposition": f'attachment; filename="{file}-{first:%Y-%m}.csv"'},
    )


def _first(month: str) -> date:
    try:
        return date.fromisoformat(f"{month}-01")
    except ValueError:
        raise ReportInvalid("month", f"{month!r} is no month such as 2026-12") from None


def _amounts(totals: list[UsageTotal], prices: PriceRows, user_id: str) -> Iterator[Row]:
    """By day, model, key and price; how many requests there were stands with each key."""
    tokens: dict[tuple[str, str, str, str], dict[tuple[str, str], int]] = {}
    for total in totals:
        group = (_day(total), str(total.group["model"]), total.names["key"], str(total.group["key"]))
        counts = tokens.setdefault(group, {("request_count", ""): 0})
        counts["request_count", ""] += total.requests
        for cost in prices.buckets(total):
            priced = (TYPES[cost.bucket], decimal_of(Femto(cost.rate)))
            counts[priced] = counts.get(priced, 0) + cost.tokens
    for (day, model, key, key_id), counted in sorted(tokens.items()):
        for (kind, price), amount in sorted(counted.items()):
            yield {
                "user_id": user_id,
                "utc_date": day,
                "model": model,
                "api_key_name": key,
                "api_key": key_id,
                "type": kind,
                "price": price,
                "amount": amount,
            }


def _costs(totals: list[UsageTotal], user_id: str) -> Iterator[Row]:
    for total in sorted(totals, key=_day):
        yield {
            "user_id": user_id,
            "utc_date": _day(total),
            "model": str(total.group["model"]),
            "cost": decimal_of(total.charge),
            "currency": total.currency,
        }


def _day(total: UsageTotal) -> str:
    day = total.group["day"]
    assert isinstance(day, datetime)
    return f"{day.astimezone(UTC):%Y-%m-%d}"


HANDLERS: Final = [show_month]
