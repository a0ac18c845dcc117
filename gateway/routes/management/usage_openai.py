"""Usage and costs in the shape of OpenAI's administration API.

``input_tokens`` is the whole prompt, of it ``input_cached_tokens`` what was billed as read from cache, also
where a promise was broken. Amounts are exact decimal strings, where OpenAI's are numbers.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from litestar import get

from billing.errors import ReportInvalid
from billing.money import Femto, decimal_of
from billing.reports.bucket_cost import PriceRows
from billing.reports.selection import Selection
from billing.reports.usage_total import Dimension, UsageTotal
from billing.usage import Bucket
from gateway import paths
from gateway.desk import AnyRequest, desk_of
from gateway.routes.management import edge, usage_report
from gateway.routes.management.usage_report import Range

DAYS_MAX: Final = 180
GROUPS: Final[Mapping[str, tuple[Dimension, ...]]] = {
    "project_id": ("project",),
    "api_key_id": ("key",),
    "model": ("model",),
    "batch": ("tier",),
    "service_tier": ("tier",),
}
COST_GROUPS: Final[Mapping[str, tuple[Dimension, ...]]] = {
    "project_id": ("project",),
    "api_key_id": ("key",),
    "line_item": ("model", "price_row", "window", "tier"),
}
LINE_ITEMS: Final[Mapping[Bucket, str]] = {
    "cache_hit": "cached_input_tokens",
    "cache_owed": "owed_input_tokens",
    "cache_write": "cache_write_input_tokens",
    "cache_miss": "input_tokens",
    "output": "output_tokens",
}

_TIERS: Final = {None: (), "true": ("batch",), "false": ("standard", "flex")}


@get(list(paths.USAGE_COMPLETIONS))
async def show_usage(request: AnyRequest) -> dict[str, Any]:
    """Tell tokens and requests by buckets of time."""
    grant = edge.manager(request)
    usage_report.refuse(request, "user_ids")
    width = usage_report.width_of(request)
    named = usage_report.groups_of(request, GROUPS)
    by = tuple(dict.fromkeys(one for name in named for one in GROUPS[name]))
    only = Selection(
        projects=usage_report.words_of(request, "project_ids"),
        keys=usage_report.words_of(request, "api_key_ids"),
        models=usage_report.words_of(request, "models"),
        tiers=_TIERS[usage_report.one_of(request, "batch", ("true", "false"))],
    )
    limit = usage_report.limit_of(request, width.usual, width.most)
    whole = Range(await _start(request), await _end(request), width)
    buckets, cursor = whole.page(usage_report.cursor_of(request), limit)
    totals = await usage_report.totals_by_bucket(request, grant, buckets, (width, by, only))
    shown = [
        (bucket, [_usage(total, named) for total in totals.get(bucket[0] - bucket[0] % width.seconds, ())])
        for bucket in buckets
    ]
    return _page(shown, cursor)


@get(list(paths.COSTS))
async def show_costs(request: AnyRequest) -> dict[str, Any]:
    """Tell what was charged by days."""
    grant = edge.manager(request)
    usage_report.refuse(request, "user_ids")
    width = usage_report.width_of(request, ("1d",))
    named = usage_report.groups_of(request, COST_GROUPS)
    items = usage_report.words_of(request, "line_items")
    if items and "line_item" not in named:
        raise ReportInvalid("line_items", "group by line_item to choose some")
    by = tuple(one for name in named for one in COST_GROUPS[name])
    only = Selection(
        projects=usage_report.words_of(request, "project_ids"),
        keys=usage_report.words_of(request, "api_key_ids"),
    )
    limit = usage_report.limit_of(request, width.usual, DAYS_MAX)
    whole = Range(await _start(request), await _end(request), width)
    buckets, cursor = whole.page(usage_report.cursor_of(request), limit)
    totals = await usage_report.totals_by_bucket(request, grant, buckets, (width, by, only))
    prices = PriceRows(desk_of(request).prices.book) if "line_item" in named else None
    shown = []
    for bucket in buckets:
        found = totals.get(bucket[0] - bucket[0] % width.seconds, [])
        costs = [_cost(total, named) for total in found] if prices is None else _items(found, prices, named)
        shown.append((bucket, [cost for cost in costs if not items or cost["line_item"] in items]))
    return _page(shown, cursor)


async def _start(request: AnyRequest) -> int:
    start = usage_report.unix_of(request, "start_time")
    if start is None:
        raise ReportInvalid("start_time", "it says where to begin, in Unix seconds")
    return start


async def _end(request: AnyRequest) -> int:
    end = usage_report.unix_of(request, "end_time")
    return await usage_report.now_s(request) if end is None else end


def _page(buckets: list[tuple[tuple[int, int], list[dict[str, Any]]]], cursor: str | None) -> dict[str, Any]:
    return {
        "object": "page",
        "data": [
            {"object": "bucket", "start_time": start, "end_time": end, "results": results}
            for (start, end), results in buckets
        ],
        "has_more": cursor is not None,
        "next_page": cursor,
    }


def _usage(total: UsageTotal, named: tuple[str, ...]) -> dict[str, Any]:
    tier = total.group.get("tier")
    cached = total.cache_hit + total.cache_owed
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": cached + total.cache_write + total.cache_miss,
        "input_cached_tokens": cached,
        "input_cache_write_tokens": total.cache_write,
        "output_tokens": total.output,
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "num_model_requests": total.requests,
        "project_id": total.group.get("project"),
        "user_id": None,
        "api_key_id": total.group.get("key"),
        "model": total.group.get("model"),
        "batch": tier == "batch" if "batch" in named else None,
        "service_tier": tier if "service_tier" in named else None,
    }


def _cost(total: UsageTotal, named: tuple[str, ...]) -> dict[str, Any]:
    return {
        "object": "organization.costs.result",
        "amount": {"value": decimal_of(total.charge), "currency": total.currency.lower()},
        "line_item": None,
        "quantity": None,
        "quantity_unit": None,
        "project_id": total.group.get("project"),
        "api_key_id": total.group.get("key") if "api_key_id" in named else None,
    }


def _items(totals: list[UsageTotal], prices: PriceRows, named: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """A line for the tokens of each bucket and model, whatever they cost when."""
    amounts: dict[tuple[Any, ...], tuple[int, int]] = {}
    for total in totals:
        for cost in prices.buckets(total):
            item = f"{total.group['model']}, {LINE_ITEMS[cost.bucket]}"
            group = (total.currency, total.group.get("project"), total.group.get("key"), item)
            amount, tokens = amounts.get(group, (0, 0))
            amounts[group] = (amount + cost.cost, tokens + cost.tokens)
    for (currency, project, key, item), (amount, tokens) in sorted(amounts.items(), key=str):
        yield {
            "object": "organization.costs.result",
            "amount": {"value": decimal_of(Femto(amount)), "currency": currency.lower()},
            "line_item": item,
            "quantity": tokens,
            "quantity_unit": "tokens",
            "project_id": project,
            "api_key_id": key if "api_key_id" in named else None,
        }


HANDLERS: Final = [show_usage, show_costs]
