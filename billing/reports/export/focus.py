"""Charges as rows of FOCUS 1.2: one a bucket of a group, each priced by one rate and listed by one.

A price is per 1,000,000 tokens, and so is the pricing quantity: both are exact decimals, and their product is
the cost to the femto-unit. What is billed is what was contracted is what is effective: there are no
commitments to spread. Instants are of UTC, as FOCUS wants them; days and months begin in the order's zone.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from billing.interval import zone_of
from billing.money import FEMTO_PER_UNIT, TOKENS_PER_RATE, Femto, decimal_of, rate_text
from billing.pricing.book import PriceBook
from billing.reports.bucket_cost import BucketCost, PriceRows
from billing.reports.export.charges import ChargeGroup, Listed
from billing.reports.export.order import ExportOrder
from billing.reports.export.rows import Row
from billing.usage import Bucket, Tier

METERS: Final[dict[Bucket, str]] = {
    "cache_hit": "Cached Input Tokens",
    "cache_owed": "Owed Input Tokens",
    "cache_write": "Cache Write Tokens",
    "cache_miss": "Input Tokens",
    "output": "Output Tokens",
}

_FEMTO_A_TOKEN: Final = FEMTO_PER_UNIT // TOKENS_PER_RATE
_ALIKE: Final = {
    "BillingAccountType": "Organization",
    "ChargeCategory": "Usage",
    "ChargeFrequency": "Usage-Based",
    "ConsumedUnit": "Tokens",
    "PricingCategory": "Standard",
    "PricingUnit": f"{TOKENS_PER_RATE} Tokens",
    "ResourceType": "API Key",
    "ServiceCategory": "AI and Machine Learning",
    "ServiceSubcategory": "Generative AI",
    "SubAccountType": "Project",
}


class ChargeLines:
    """Makes rows of groups, by the published prices.

    Args:
        book: all that is published.
        producer: who serves, publishes and invoices, by name.
    """

    def __init__(self, book: PriceBook, producer: str) -> None:
        self._prices = PriceRows(book)
        self._alike = _ALIKE | {
            "InvoiceIssuerName": producer,
            "ProviderName": producer,
            "PublisherName": producer,
            "ServiceName": f"{producer} Inference",
        }

    def rows(self, group: ChargeGroup, order: ExportOrder) -> Iterator[Row]:
        """A row a bucket that holds tokens.

        Raises:
            ChargeUnexplained: the group was not charged what its price row says.
        """
        shared = self._alike | _of_group(group, order)
        for cost in self._prices.buckets(group.total):
            yield shared | _of_bucket(group, cost)


def _of_group(group: ChargeGroup, order: ExportOrder) -> dict[str, Any]:
    total = group.total
    text = {one: str(value) for one, value in total.group.items() if not isinstance(value, datetime)}
    begins, month = total.group[order.step], total.group["month"]
    assert isinstance(begins, datetime)
    assert isinstance(month, datetime)
    zone = zone_of(order.zone)
    ends = begins + timedelta(hours=1) if order.step == "hour" else _midnight(begins, zone, days=1)
    return {
        "BillingAccountId": text["tenant"],
        "BillingAccountName": total.names["tenant"],
        "BillingCurrency": total.currency,
        "BillingPeriodEnd": _midnight(month, zone, days=32, first=True),
        "BillingPeriodStart": month,
        "ChargePeriodEnd": ends,
        "ChargePeriodStart": begins,
        "ResourceId": text["key"],
        "ResourceName": total.names["key"],
        "SubAccountId": text["project"],
        "SubAccountName": total.names["project"],
        "Tags": _json({"kvitto/TrafficClass": text["traffic_class"]}),
        "x_price_row_id": text["price_row"],
        "x_price_window": text["window"],
        "x_tier": text["tier"],
        "x_traffic_class": text["traffic_class"],
    }


def _of_bucket(group: ChargeGroup, cost: BucketCost) -> dict[str, Any]:
    total, bucket = group.total, cost.bucket
    row_id, window, model, tier = (str(total.group[one]) for one in ("price_row", "window", "model", "tier"))
    listed_rate = cost.rate if group.listed is None else _listed_rate(group.listed, tier, cost)
    billed = decimal_of(cost.cost)
    tokens: dict[str, int] = dict.fromkeys((f"x_{each}_tokens" for each in (*METERS, "reasoning")), 0)
    tokens[f"x_{bucket}_tokens"] = cost.tokens
    if bucket == "output":
        tokens["x_reasoning_tokens"] = total.reasoning
    return {
        "BilledCost": billed,
        "ChargeDescription": f"{model}: {METERS[bucket]}, {tier} tier, window {window}",
        "ConsumedQuantity": str(cost.tokens),
        "ContractedCost": billed,
        "ContractedUnitPrice": rate_text(cost.rate),
        "EffectiveCost": billed,
        "ListCost": decimal_of(Femto(cost.tokens * listed_rate)),
        "ListUnitPrice": rate_text(listed_rate),
        "PricingQuantity": decimal_of(Femto(cost.tokens * _FEMTO_A_TOKEN)),
        "SkuId": f"{model}/{bucket}",
        "SkuMeter": METERS[bucket],
        "SkuPriceDetails": _json({"Bucket": bucket, "Model": model, "Tier": tier, "Window": window}),
        "SkuPriceId": f"{row_id}#{window}/{tier}/{bucket}",
        "x_bucket": bucket,
        "x_list_price_row_id": row_id if group.listed is None else group.listed.row.id,
        "x_list_price_window": window if group.listed is None else group.listed.window,
        **tokens,
    }


def _listed_rate(listed: Listed, tier: Tier | str, cost: BucketCost) -> int:
    """The public rate of a bucket; of the standard tier where the public price offers no such tier."""
    rates = listed.row.named_rates[listed.window]
    of_tier = {str(name): each for name, each in rates.offered.items()}.get(tier, rates)
    return of_tier.of_bucket(cost.bucket)


def _midnight(begins: datetime, zone: ZoneInfo, days: int, *, first: bool = False) -> datetime:
    """So many days later in a zone; ``first``: of the month that that day is in."""
    day = begins.astimezone(zone).date() + timedelta(days=days)
    return datetime.combine(day.replace(day=1) if first else day, time.min, zone).astimezone(UTC)


def _json(facts: dict[str, str]) -> str:
    return msgspec.json.encode(facts).decode()
