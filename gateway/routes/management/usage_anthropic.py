"""Usage and costs in the shape of Anthropic's administration API: projects are its workspaces.

Buckets are whole ones of UTC: the first is the one that the beginning is in, the last ends by the end. What a
broken promise owes was billed as read from cache, and is told so. Amounts are in hundredths of the currency
unit, as Anthropic's, and exact.
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
from gateway.routes.management.usage_report import Range, Width

GROUPS: Final[Mapping[str, tuple[Dimension, ...]]] = {
    "api_key_id": ("key",),
    "workspace_id": ("project",),
    "model": ("model",),
    "service_tier": ("tier",),
}
COST_GROUPS: Final[Mapping[str, tuple[Dimension, ...]]] = {
    "workspace_id": ("project",),
    "description": ("model", "price_row", "window", "tier"),
}
TOKEN_TYPES: Final[Mapping[Bucket, str]] = {
    "cache_hit": "cache_read_input_tokens",
    "cache_owed": "cache_read_input_tokens",
    "cache_write": "cache_creation.ephemeral_5m_input_tokens",
    "cache_miss": "uncached_input_tokens",
    "output": "output_tokens",
}


@get(list(paths.USAGE_REPORT))
async def show_usage(request: AnyRequest) -> dict[str, Any]:
    """Tell tokens by buckets of time."""
    grant = edge.manager(request)
    usage_report.refuse(request, "context_window", "inference_geos", "account_ids", "service_account_ids")
    width = usage_report.width_of(request)
    named = usage_report.groups_of(request, GROUPS)
    by = tuple(one for name in named for one in GROUPS[name])
    only = Selection(
        projects=usage_report.words_of(request, "workspace_ids"),
        keys=usage_report.words_of(request, "api_key_ids"),
        models=usage_report.words_of(request, "models"),
        tiers=usage_report.words_of(request, "service_tiers"),
    )
    limit = usage_report.limit_of(request, width.usual, width.most)
    buckets, cursor = (await _range(request, width)).page(usage_report.cursor_of(request), limit)
    totals = await usage_report.totals_by_bucket(request, grant, buckets, (width, by, only))
    return _page(
        [(bucket, [_usage(total) for total in totals.get(bucket[0], ())]) for bucket in buckets], cursor
    )


@get(list(paths.COST_REPORT))
async def show_costs(request: AnyRequest) -> dict[str, Any]:
    """Tell what was charged by days."""
    grant = edge.manager(request)
    width = usage_report.width_of(request, ("1d",))
    named = usage_report.groups_of(request, COST_GROUPS)
    by = tuple(one for name in named for one in COST_GROUPS[name])
    limit = usage_report.limit_of(request, width.usual, width.most)
    buckets, cursor = (await _range(request, width)).page(usage_report.cursor_of(request), limit)
    totals = await usage_report.totals_by_bucket(request, grant, buckets, (width, by, Selection()))
    prices = PriceRows(desk_of(request).prices.book) if "description" in named else None
    shown = []
    for bucket in buckets:
        found = totals.get(bucket[0], [])
        shown.append((bucket, list(_described(found, prices) if prices else map(_cost, found))))
    return _page(shown, cursor)


async def _range(request: AnyRequest, width: Width) -> Range:
    since = usage_report.instant_of(request, "starting_at")
    until = usage_report.instant_of(request, "ending_at")
    if since is None:
        raise ReportInvalid("starting_at", "it says where to begin: an instant such as 2026-12-01T00:00:00Z")
    if until is None:  # the bucket that is not over is told as far as it is
        now = await usage_report.now_s(request)
        until = now + -now % width.seconds
    usage_report.in_order(since, until)
    begins = since - since % width.seconds
    return Range(begins, max(begins, until - until % width.seconds), width)


def _page(buckets: list[tuple[tuple[int, int], list[dict[str, Any]]]], cursor: str | None) -> dict[str, Any]:
    return {
        "data": [
            {
                "starting_at": usage_report.rfc3339(start),
                "ending_at": usage_report.rfc3339(end),
                "results": results,
            }
            for (start, end), results in buckets
        ],
        "has_more": cursor is not None,
        "next_page": cursor,
    }


def _usage(total: UsageTotal) -> dict[str, Any]:
    return {
        "uncached_input_tokens": total.cache_miss,
        "cache_creation": {
            "ephemeral_1h_input_tokens": 0,
            "ephemeral_5m_input_tokens": total.cache_write,
        },
        "cache_read_input_tokens": total.cache_hit + total.cache_owed,
        "output_tokens": total.output,
        "server_tool_use": {"web_search_requests": 0},
        "api_key_id": total.group.get("key"),
        "workspace_id": total.group.get("project"),
        "model": total.group.get("model"),
        "service_tier": total.group.get("tier"),
        "context_window": None,
        "inference_geo": None,
    }


def _cost(total: UsageTotal) -> dict[str, Any]:
    return {
        "currency": total.currency,
        "amount": _hundredths(total.charge),
        "workspace_id": total.group.get("project"),
        "description": None,
        "cost_type": None,
        "context_window": None,
        "model": None,
        "service_tier": None,
        "token_type": None,
        "inference_geo": None,
    }


def _described(totals: list[UsageTotal], prices: PriceRows) -> Iterator[dict[str, Any]]:
    """A line for each kind of tokens of a model and tier, whatever they cost when."""
    amounts: dict[tuple[Any, ...], int] = {}
    for total in totals:
        for cost in prices.buckets(total):
            group = (
                *(total.currency, total.group.get("project"), total.group["model"], total.group["tier"]),
                TOKEN_TYPES[cost.bucket],
            )
            amounts[group] = amounts.get(group, 0) + cost.cost
    for (currency, project, model, tier, kind), amount in sorted(amounts.items(), key=str):
        yield {
            "currency": currency,
            "amount": _hundredths(Femto(amount)),
            "workspace_id": project,
            "description": f"{model} Usage - {kind}, {tier}",
            "cost_type": "tokens",
            "context_window": None,
            "model": model,
            "service_tier": tier,
            "token_type": kind,
            "inference_geo": None,
        }


def _hundredths(amount: Femto) -> str:
    return decimal_of(Femto(amount * 100))


HANDLERS: Final = [show_usage, show_costs]
