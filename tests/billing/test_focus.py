"""FOCUS 1.2: columns, nulls and sums by rules of our own.

The public validator (`focus-validator` 1.0.0 on PyPI, 400 MB with pandas, not installed) ends at FOCUS 1.0,
and at names from before that was final. To hold a file to it as far as it goes, in an environment of its own:

    pip install focus-validator 'multimethod<1.11' 'sqlglot<18'
    kvitto export focus.csv --content focus --since 2026-10-01 --until 2026-11-01
    focus-validator --data-file focus.csv --validate-version 1.0

It succeeds once the file has the names it asks for (InvoiceIssuer, Provider, Publisher, ResourceID,
ChargeType), ConsumedQuantity with a point (FOCUS takes whole numbers too), and its list of
currencies, which the package looks for in the working directory, `focus_validator/utils/currency_codes.csv`.
"""

import io
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from billing.errors import ChargeUnexplained
from billing.money import Femto, decimal_of, femto_of
from billing.pricing.book import PriceBook
from billing.pricing.rating import rate
from billing.reports.bucket_cost import PriceRows
from billing.reports.export.focus_column import CUSTOM, FOCUS
from billing.reports.export.order import ExportOrder
from billing.reports.rollup import Rollups
from billing.reports.service import Reports
from billing.reports.usage_total import TOKENS, Dimension, UsageTotal
from tests.billing.test_export import BERLIN, file_of, read_csv, read_jsonl
from tests.billing.usage_month import MONTH, OLD, OWN_FROM, ZONE, Month, book, charges, generated

ORDER = ExportOrder("focus", "csv", MONTH, ZONE)
# The columns that FOCUS 1.2 calls mandatory, by the list of its specification.
MANDATORY = {
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost"),
    *("PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
}
# Those whose condition holds: unit prices, usage that is measured, resources, sub accounts, tags.
CONDITIONAL = {
    *("ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice", "PricingCategory"),
    *("ResourceId", "ResourceName", "ResourceType", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId"),
    *("SubAccountId", "SubAccountName", "Tags"),
}
COLUMN: dict[Dimension, str] = {
    "tenant": "BillingAccountId",
    "project": "SubAccountId",
    "key": "ResourceId",
    "traffic_class": "x_traffic_class",
    "price_row": "x_price_row_id",
    "window": "x_price_window",
    "tier": "x_tier",
}


@pytest.fixture
async def month(house: Any) -> Month:
    made = await generated(house, seed=12)
    await made.settle()
    return made


async def lines(month: Month, order: ExportOrder = ORDER) -> list[dict[str, Any]]:
    """The rows of both tenants of a month."""
    content, written = await file_of(month.house, order)
    rows = list((read_csv if order.form == "csv" else read_jsonl)(content))
    assert written.rows == len(rows)
    both = {month.house.tenant_id, month.other.tenant_id}
    return [row for row in rows if row["BillingAccountId"] in both]


def femto(text: str) -> int:
    return femto_of(text)


def summed(rows: Iterable[dict[str, Any]], column: str, of: str = "BilledCost") -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for row in rows:
        group = (row[column], row["BillingCurrency"])
        sums[group] = sums.get(group, 0) + femto(row[of])
    return sums


def test_focus_columns_come_first_in_the_order_of_the_alphabet_and_none_is_missing() -> None:
    names = [column.name for column in FOCUS[: -len(CUSTOM)]]
    assert names == sorted(names)
    assert set(names) >= MANDATORY | CONDITIONAL
    assert all(column.name.startswith("x_") for column in CUSTOM)
    nullable = {column.name for column in FOCUS if column.nullable}
    assert nullable & (MANDATORY | CONDITIONAL) == {"ChargeClass"}, (
        "null: nothing here corrects a closed period"
    )


@pytest.mark.parametrize("step", ["day", "hour"])
async def test_what_is_billed_adds_up_to_the_totals_for_every_dimension(
    house: Any, month: Month, step: Any
) -> None:
    """BerriAI/litellm#32581: from events and from rollups, to the femto-unit, currencies apart."""
    totals = Reports(house.database)
    for _ in range(2):
        rows = await lines(month, replace(ORDER, step=step))
        for one, column in COLUMN.items():
            expected: dict[Any, int] = {}
            for tenant in (month.house, month.other):
                question = replace(ORDER.question, by=(one,), tenant_id=tenant.tenant_id)
                for total in await totals.totals(question):
                    group = (total.group[one], total.currency)
                    expected[group] = expected.get(group, 0) + total.charge
            assert summed(rows, column) == {group: sum_ for group, sum_ in expected.items() if sum_}
        await Rollups(house.database, lag=timedelta(0)).build()
    by_currency = charges(month.events, lambda _: "Usage")
    for of in ("BilledCost", "EffectiveCost", "ContractedCost"):
        assert summed(rows, "ChargeCategory", of) == by_currency


async def test_tokens_of_each_bucket_add_up_and_none_is_counted_twice(month: Month) -> None:
    rows = await lines(month)
    inside = [event for event in month.events if MONTH.since <= event.rated_at < MONTH.until]
    for name in TOKENS[:-1]:
        told = sum(row[f"x_{name}_tokens"] for row in rows)
        assert told == sum(getattr(event.usage, name) for event in inside)
        assert told == sum(int(row["ConsumedQuantity"]) for row in rows if row["x_bucket"] == name) > 0
    assert sum(row["x_reasoning_tokens"] for row in rows) == sum(event.reasoning_tokens for event in inside)
    assert sum(int(row["ConsumedQuantity"]) for row in rows) == sum(
        event.usage.prompt + event.usage.output for event in inside
    )


async def test_every_row_holds_what_focus_says_of_its_columns(month: Month) -> None:
    """Products of price and quantity to the last digit, nulls where they may be, periods around periods."""
    rows = await lines(month)
    for row in rows:
        assert list(row) == [column.name for column in FOCUS]
        for column in FOCUS:
            assert row[column.name] != "" or column.nullable, column.name
        assert row["ChargeClass"] == row["InvoiceId"] == ""
        quantity = Decimal(row["PricingQuantity"])
        assert quantity * 1_000_000 == int(row["ConsumedQuantity"]) > 0
        assert row["PricingUnit"] == "1000000 Tokens"
        assert Decimal(row["ContractedUnitPrice"]) * quantity == Decimal(row["ContractedCost"])
        assert Decimal(row["ListUnitPrice"]) * quantity == Decimal(row["ListCost"])
        assert json.loads(row["Tags"]).keys() == {"kvitto/TrafficClass"}
        assert json.loads(row["SkuPriceDetails"])["Bucket"] == row["x_bucket"]
        begins, ends, month_begins, month_ends = (
            datetime.strptime(row[f"{period}Period{edge}"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            for period in ("Charge", "Billing")
            for edge in ("Start", "End")
        )
        assert month_begins == MONTH.since <= begins < ends <= month_ends == MONTH.until
        assert ends.astimezone(BERLIN).time() == begins.astimezone(BERLIN).time() == datetime.min.time()
    of_clocks = {row["ChargePeriodEnd"] for row in rows if row["ChargePeriodStart"] == "2026-10-24T22:00:00Z"}
    assert of_clocks == {"2026-10-25T23:00:00Z"}, "a day of 25 hours"


async def test_the_list_cost_is_the_public_price_of_each_moment(house: Any, month: Month) -> None:
    """The first tenant's own price is beside the public windows of 16:30 to 00:30 UTC, and their change."""
    rows = [row for row in await lines(month) if row["BillingAccountId"] == month.house.tenant_id]
    public, expected = book(), 0
    for event in month.of(month.house.tenant_id):
        if MONTH.since <= event.rated_at < MONTH.until:
            tier = event.charge.tier
            expected += rate(public, event.model, "USD", event.usage, event.rated_at, tier).amount
    assert sum(femto(row["ListCost"]) for row in rows) == expected
    own = [row for row in rows if row["x_price_row_id"].endswith(month.house.tenant_id)]
    assert {row["x_list_price_window"] for row in own} == {"standard", "offpeak"}
    assert sum(femto(row["ListCost"]) - femto(row["ContractedCost"]) for row in own) > 0
    assert all(row["ListCost"] == row["ContractedCost"] for row in rows if row not in own)
    assert min(row["ChargePeriodStart"] for row in own) >= f"{OWN_FROM.date() - timedelta(days=1)}"
    assert {row["SkuId"].partition("/")[0] for row in own} == {OLD}


async def test_jsonl_and_parquet_say_the_same_with_real_nulls(house: Any, month: Month) -> None:
    rows = await lines(month)
    as_json = await lines(month, replace(ORDER, form="jsonl"))
    assert [{k: "" if v is None else v for k, v in row.items()} for row in as_json] == [
        {k: v.removeprefix("'") if isinstance(v, str) else v for k, v in row.items()} for row in rows
    ]
    content, _ = await file_of(house, replace(ORDER, form="parquet", tenant_id=month.house.tenant_id))
    table = parquet.read_table(io.BytesIO(content))
    assert table.schema.field("BilledCost").type == pa.decimal128(38, 15)
    assert table.schema.field("ChargePeriodStart").type == pa.timestamp("us", tz="UTC")
    assert table.column("ChargeClass").null_count == table.num_rows
    told = sum(table.column("BilledCost").to_pylist())
    of_tenant = summed(as_json, "BillingAccountId")[month.house.tenant_id, "USD"]
    assert f"{told:f}".rstrip("0") == decimal_of(Femto(of_tenant))
    assert table.schema.metadata[b"focus.version"] == b"1.2"


def test_a_charge_without_its_price_row_or_beyond_it_is_refused_by_name() -> None:
    """A price row that vanished, a window it never had, a sum that differs: each is named, not guessed."""
    row = book().rows[1]
    group = {"price_row": row.id, "window": "standard", "tier": "standard"}
    charge = Femto(3 * row.standard.hit + 2 * row.standard.output)
    total = UsageTotal(group, {}, "USD", 1, 2, 1, 0, 0, 2, 0, charge)  # type: ignore[arg-type]  plain texts
    buckets = PriceRows(book()).buckets(total)
    assert [(each.bucket, each.tokens) for each in buckets] == [
        ("cache_hit", 2),
        ("cache_owed", 1),
        ("output", 2),
    ]
    assert sum(each.cost for each in buckets) == charge
    for wrong, prices, reason in (
        (total, PriceBook(()), "no such price row"),
        (replace(total, group={**group, "window": "dawn"}), book(), "no rates"),
        (replace(total, group={**group, "tier": "batch"}), book(), "no rates"),
        (replace(total, charge=Femto(charge + 1)), book(), f"explains {charge} femto-units of {charge + 1}"),
    ):
        with pytest.raises(ChargeUnexplained, match=reason) as refused:
            PriceRows(prices).buckets(wrong)  # type: ignore[arg-type]  likewise
        assert refused.value.price_row_id == row.id
