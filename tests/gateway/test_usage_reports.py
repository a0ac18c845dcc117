"""Usage and costs in the shapes of OpenAI, Anthropic and DeepSeek: exact, half-open, nobody else's."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any

import openai
import pytest

from billing.money import Femto, decimal_of, femto_of
from billing.pricing.toml import shipped
from billing.reports.rollup import Rollups
from billing.tenancy.api_key import KeyTerms
from gateway.routes.management import usage_report
from tests.billing.conftest import House as Books
from tests.billing.usage_month import BEGAN, MONTH, Month, generated
from tests.gateway.conftest import House

SINCE, UNTIL = int(MONTH.since.timestamp()), int(MONTH.until.timestamp())
READS = KeyTerms(scopes=frozenset({"usage_read"}))
COMPLETIONS, COSTS = "/v1/organization/usage/completions", "/v1/organization/costs"
REPORT, COST_REPORT = "/v1/organizations/usage_report/messages", "/v1/organizations/cost_report"


@dataclass(frozen=True)
class Reader:
    """A key of the month's tenant that reads usage."""

    house: House
    month: Month
    tenant_id: str
    key: str

    @property
    def inside(self) -> list[Any]:
        return [e for e in self.month.of(self.tenant_id) if MONTH.since <= e.rated_at < MONTH.until]

    async def __call__(self, path: str, **parameters: Any) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {self.key}"}
        url = self.house.url + path
        async with self.house.session.get(url, params=parameters, headers=headers) as answer:
            return answer.status, await answer.json()

    async def pages(self, path: str, **parameters: Any) -> list[Any]:
        """All buckets of all pages, which must join without gap."""
        buckets: list[Any] = []
        while True:
            status, page = await self(path, **parameters)
            assert status == 200, page
            buckets += page["data"]
            assert page["has_more"] == (page["next_page"] is not None)
            if not page["has_more"]:
                return buckets
            parameters["page"] = page["next_page"]


@pytest.fixture
async def readers(house: House) -> tuple[Reader, Reader]:
    """Of both tenants of a generated month."""
    parts = house.parts
    books = Books(parts.database, parts.tenancy, parts.prices, parts.ledger, shipped("demo"), "", "")
    month = await generated(books, seed=8, requests=60)
    await month.settle()
    await house.desk.prices.refresh()
    made = []
    for tenant in (month.house, month.other):
        issued = await parts.tenancy.create_key(tenant.tenant_id, "finance", BEGAN, terms=READS)
        made.append(Reader(house, month, tenant.tenant_id, issued.secret))
    return made[0], made[1]


def charged(events: list[Any], key: Callable[[Any], Any]) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for event in events:
        if event.charge.amount:
            sums[key(event)] = sums.get(key(event), 0) + event.charge.amount
    return sums


def told(buckets: list[Any], key: Callable[[Any], Any], amount: Callable[[Any], int]) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for bucket in buckets:
        for result in bucket["results"]:
            if amount(result):
                sums[key(result)] = sums.get(key(result), 0) + amount(result)
    return sums


def amount(result: Any) -> int:
    return femto_of(result["amount"]["value"])


@pytest.mark.parametrize("width", ["1h", "1d"])
async def test_usage_adds_up_by_every_grouping_over_all_pages(
    readers: tuple[Reader, Reader], width: str
) -> None:
    """BerriAI/litellm#28009, BerriAI/litellm#32581: cached tokens too, and from rollups as from events."""
    for reader in readers:
        for by, key in (
            ("", lambda e: None),
            ("api_key_id", lambda e: e.key_id),
            ("project_id", lambda e: reader.month.projects[e.key_id]),  # noqa: B023  called at once
            ("model", lambda e: e.model),
            ("service_tier", lambda e: e.charge.tier),
            ("batch", lambda e: e.charge.tier == "batch"),
        ):
            wanted = {"group_by[]": by} if by else {}
            buckets = await reader.pages(
                COMPLETIONS, start_time=SINCE, end_time=UNTIL, bucket_width=width, **wanted
            )
            for field, of_event in (
                ("input_tokens", lambda e: e.usage.prompt),
                ("input_cached_tokens", lambda e: e.usage.cache_hit + e.usage.cache_owed),
                ("output_tokens", lambda e: e.usage.output),
                ("num_model_requests", lambda e: 1),
            ):
                expected: dict[Any, int] = {}
                for event in reader.inside:
                    if of_event(event):
                        expected[key(event)] = expected.get(key(event), 0) + of_event(event)
                found = told(buckets, itemgetter(by or "user_id"), itemgetter(field))
                assert found == expected, (by, field)
            await Rollups(reader.house.parts.database, lag=timedelta(0)).build()


async def test_costs_add_up_to_the_femto_unit_by_project_key_and_line_item(
    readers: tuple[Reader, Reader],
) -> None:
    """BerriAI/litellm#8867: exact decimals. The amounts of all line items are what was charged."""
    for reader in readers:
        (currency,) = {event.charge.currency.lower() for event in reader.inside}
        wanted = {"start_time": SINCE, "end_time": UNTIL, "limit": 10}
        for by, key in (
            ("project_id", lambda e: reader.month.projects[e.key_id]),  # noqa: B023  called at once
            ("api_key_id", lambda e: e.key_id),
        ):
            buckets = await reader.pages(COSTS, **wanted, group_by=by)
            assert told(buckets, itemgetter(by), amount) == charged(reader.inside, key)
            assert {r["amount"]["currency"] for b in buckets for r in b["results"]} == {currency}
        items = await reader.pages(COSTS, **wanted, group_by="line_item")
        by_item = told(items, itemgetter("line_item"), amount)
        assert sum(by_item.values()) == sum(event.charge.amount for event in reader.inside)
        for name, of_event in (
            ("cached_input_tokens", lambda e: e.charge.cache_hit),
            ("owed_input_tokens", lambda e: e.charge.cache_owed),
            ("output_tokens", lambda e: e.charge.output),
        ):
            expected = sum(of_event(event) for event in reader.inside if event.model == "v4-flash")
            assert by_item[f"v4-flash, {name}"] == expected
        one = await reader.pages(
            COSTS, **wanted, group_by="line_item", **{"line_items[]": "v4-flash, output_tokens"}
        )
        assert told(one, itemgetter("line_item"), amount) == {
            "v4-flash, output_tokens": by_item["v4-flash, output_tokens"]
        }


async def test_anthropics_reports_say_the_same_in_hundredths(readers: tuple[Reader, Reader]) -> None:
    for reader in readers:
        since, until = MONTH.since - timedelta(hours=22), MONTH.until + timedelta(hours=1)
        whole = {"starting_at": since.isoformat(), "ending_at": until.isoformat(), "limit": 31}
        events = [e for e in reader.month.of(reader.tenant_id) if since <= e.rated_at < until]
        buckets = await reader.pages(REPORT, **whole, **{"group_by[]": "workspace_id"})
        assert buckets[0]["starting_at"] == "2026-09-30T00:00:00Z"
        assert buckets[-1]["ending_at"] == "2026-11-01T00:00:00Z"
        for field, of_event in (
            ("uncached_input_tokens", lambda e: e.usage.cache_miss),
            ("cache_read_input_tokens", lambda e: e.usage.cache_hit + e.usage.cache_owed),
            ("output_tokens", lambda e: e.usage.output),
        ):
            expected: dict[Any, int] = {}
            for event in events:
                home = reader.month.projects[event.key_id]
                if of_event(event):
                    expected[home] = expected.get(home, 0) + of_event(event)
            assert told(buckets, itemgetter("workspace_id"), itemgetter(field)) == expected
        costs = await reader.pages(COST_REPORT, **whole, **{"group_by[]": "description"})
        hundredths = sum(Decimal(r["amount"]) for b in costs for r in b["results"])
        assert hundredths == 100 * Decimal(decimal_of(Femto(sum(e.charge.amount for e in events))))
        plain = await reader.pages(COST_REPORT, **whole)
        assert sum(Decimal(r["amount"]) for b in plain for r in b["results"]) == hundredths
        kinds = {r["token_type"] for b in costs for r in b["results"]}
        assert {"uncached_input_tokens", "cache_read_input_tokens", "output_tokens"} <= kinds


async def test_a_month_in_deepseeks_shape_multiplies_out_to_what_was_charged(
    readers: tuple[Reader, Reader],
) -> None:
    """Formula-safe names; price times amount, over all rows, is the month's charge."""
    for reader in readers:
        october = [
            e for e in reader.month.of(reader.tenant_id) if f"{e.rated_at.astimezone(UTC):%Y-%m}" == "2026-10"
        ]
        charge = Decimal(decimal_of(Femto(sum(event.charge.amount for event in october))))
        files = {}
        for file in ("amount", "cost"):
            url = f"{reader.house.url}/v1/organization/usage/deepseek/{file}?month=2026-10"
            headers = {"x-api-key": reader.key}
            async with reader.house.session.get(url, headers=headers) as answer:
                assert (answer.status, answer.content_type) == (200, "text/csv")
                assert f"{file}-2026-10.csv" in answer.headers["content-disposition"]
                text = (await answer.read()).decode()
            files[file] = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
        amounts = files["amount"]
        assert list(amounts[0]) == [
            "user_id", "utc_date", "model", "api_key_name", "api_key", "type", "price", "amount",
        ]  # fmt: skip
        assert sum(Decimal(row["price"] or 0) * int(row["amount"]) for row in amounts) == charge
        requests = sum(int(row["amount"]) for row in amounts if row["type"] == "request_count")
        assert requests == len(october)
        assert sum(Decimal(row["cost"]) for row in files["cost"]) == charge
        assert [row["utc_date"] for row in amounts] == sorted(row["utc_date"] for row in amounts)
        assert {row["user_id"] for row in amounts} == {reader.tenant_id}
        assert not [row for row in amounts if row["api_key_name"].startswith(("=", "+", "-", "@", "－"))]


async def test_openais_own_client_reads_usage_and_costs(readers: tuple[Reader, Reader]) -> None:
    reader = readers[0]
    async with openai.AsyncOpenAI(
        api_key=reader.key, admin_api_key=reader.key, base_url=f"{reader.house.url}/v1", max_retries=0
    ) as client:
        usage = await client.admin.organization.usage.completions(
            start_time=SINCE, end_time=UNTIL, limit=31, group_by=["model", "project_id"], models=["v4-flash"]
        )
        assert {result.model for bucket in usage.data for result in bucket.results} == {"v4-flash"}
        tokens = sum(result.input_tokens for bucket in usage.data for result in bucket.results)
        expected = [e for e in reader.inside if e.model == "v4-flash" and e.rated_at < _end(usage)]
        assert tokens == sum(event.usage.prompt for event in expected)
        costs = await client.admin.organization.usage.costs(start_time=SINCE, end_time=UNTIL, limit=180)
        values = [result.amount.value for bucket in costs.data for result in bucket.results]
        charge = decimal_of(Femto(sum(e.charge.amount for e in reader.inside)))
        assert sum(values) == pytest.approx(float(charge)), "the client makes floats of exact decimals"


def _end(page: Any) -> datetime:
    return datetime.fromtimestamp(page.data[-1].end_time, UTC)


async def test_a_bucket_holds_its_beginning_and_not_its_end_and_ranges_cut_it(
    readers: tuple[Reader, Reader],
) -> None:
    """BerriAI/litellm#22176: also by minutes, and when a range begins within a bucket."""
    reader = readers[0]
    event = next(e for e in reader.inside if e.usage.prompt and e.rated_at.second == 0)
    at = int(event.rated_at.timestamp())
    everything = reader.month.of(reader.tenant_id)
    alike = [e for e in everything if e.rated_at == event.rated_at]
    for start, end, there in ((at, at + 1, True), (at - 60, at, False), (at - 7, at + 1, True)):
        beside = [e for e in everything if start <= e.rated_at.timestamp() < end and e not in alike]
        for width in ("1m", "1h", "1d"):
            buckets = await reader.pages(COMPLETIONS, start_time=start, end_time=end, bucket_width=width)
            requests = sum(r["num_model_requests"] for b in buckets for r in b["results"])
            assert requests == len(alike) * there + len(beside), (start, end, width)
            assert (buckets[0]["start_time"], buckets[-1]["end_time"]) == (start, end)
    assert (await reader(COMPLETIONS, start_time=at, end_time=at))[1]["data"] == []


async def test_a_tenant_never_sees_another_nor_what_a_filter_names_of_it(
    readers: tuple[Reader, Reader],
) -> None:
    mine, theirs = readers
    key_id = theirs.inside[0].key_id
    for path, name in ((COMPLETIONS, "api_key_ids"), (COSTS, "api_key_ids[]")):
        wanted = {"start_time": SINCE, "end_time": UNTIL, name: key_id}
        assert all(bucket["results"] == [] for bucket in await mine.pages(path, **wanted))
        assert any(bucket["results"] for bucket in await theirs.pages(path, **wanted))
    home = theirs.month.projects[key_id]
    wanted = {
        "starting_at": MONTH.since.isoformat(),
        "ending_at": MONTH.until.isoformat(),
        "workspace_ids[]": home,
    }
    assert all(bucket["results"] == [] for bucket in await mine.pages(REPORT, **wanted))
    assert any(bucket["results"] for bucket in await theirs.pages(REPORT, **wanted))


MEANINGLESS = (
    (COMPLETIONS, {}, "start_time"),
    (COMPLETIONS, {"start_time": "yesterday"}, "start_time"),
    (COMPLETIONS, {"start_time": -1}, "start_time"),
    (COMPLETIONS, {"start_time": 10**15}, "start_time"),
    (COMPLETIONS, {"start_time": 20, "end_time": 10}, None),
    (COMPLETIONS, {"start_time": 0, "bucket_width": "1w"}, "bucket_width"),
    (COMPLETIONS, {"start_time": 0, "limit": 32}, "limit"),
    (COMPLETIONS, {"start_time": 0, "limit": 0}, "limit"),
    (COMPLETIONS, {"start_time": 0, "page": "page_1"}, "page"),
    (COMPLETIONS, {"start_time": 0, "page": "2"}, "page"),
    (COMPLETIONS, {"start_time": 0, "group_by": "colour"}, "group_by"),
    (COMPLETIONS, {"start_time": 0, "group_by[]": "user_id"}, "group_by"),
    (COMPLETIONS, {"start_time": 0, "user_ids": "u"}, "user_ids"),
    (COMPLETIONS, {"start_time": 0, "batch": "perhaps"}, "batch"),
    (COSTS, {"start_time": 0, "bucket_width": "1h"}, "bucket_width"),
    (COSTS, {"start_time": 0, "line_items": "x"}, "line_items"),
    ("/v1/organization/usage/deepseek/amount", {"month": "2026-13"}, "month"),
    ("/v1/organization/usage/deepseek/other", {}, "file"),
)


@pytest.mark.parametrize(("path", "parameters", "param"), MEANINGLESS)
async def test_what_means_nothing_is_refused_by_its_name(
    house: House, path: str, parameters: dict[str, Any], param: str | None
) -> None:
    issued = await house.parts.tenancy.create_key(house.tenant_id, "finance", BEGAN, terms=READS)
    headers = {"authorization": f"Bearer {issued.secret}"}
    async with house.session.get(house.url + path, params=parameters, headers=headers) as answer:
        assert answer.status == 422
        assert (await answer.json())["error"]["param"] == param


async def test_anthropics_refusals_have_its_shape(house: House) -> None:
    issued = await house.parts.tenancy.create_key(house.tenant_id, "finance", BEGAN, terms=READS)
    for parameters in (
        {},
        {"starting_at": "2026-12-01"},
        {"starting_at": "soon"},
        {"starting_at": "2026-12-01T10:30:00Z", "ending_at": "2026-12-01T10:10:00Z"},
        {"starting_at": "2026-12-01T00:00:00Z", "service_tiers": "gold"},
        {"starting_at": "2026-12-01T00:00:00Z", "context_window": "0-200k"},
    ):
        async with house.session.get(
            house.url + REPORT, params=parameters, headers={"x-api-key": issued.secret}
        ) as answer:
            assert answer.status == 400, parameters
            assert (await answer.json())["error"]["type"] == "invalid_request_error"


async def test_keys_that_only_infer_or_are_none_read_nothing(house: House) -> None:
    terms = KeyTerms(scopes=frozenset({"inference"}))
    infers = await house.parts.tenancy.create_key(house.tenant_id, "app", BEGAN, terms=terms)
    manages = await house.parts.tenancy.create_key(
        house.tenant_id, "boss", BEGAN, terms=replace(terms, scopes=frozenset({"management"}))
    )
    for path in (COMPLETIONS, COSTS, "/v1/organization/usage/deepseek/cost", "/v1/organization/exports"):
        for secret, status in ((infers.secret, 403), ("kv_live_nobody", 401), (manages.secret, 200)):
            headers = {"authorization": f"Bearer {secret}"}
            url = f"{house.url}{path}?start_time={SINCE}"
            async with house.session.get(url, headers=headers) as answer:
                assert answer.status == status, (path, status)


async def test_more_rows_than_are_told_at_once_are_refused_and_exports_named(
    readers: tuple[Reader, Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_report, "ROWS_MAX", 3)
    wanted = {"start_time": SINCE, "end_time": UNTIL, "limit": 31, "group_by": "api_key_id"}
    status, body = await readers[0](COMPLETIONS, **wanted)
    assert (status, body["error"]["param"]) == (422, "limit")
    assert "export" in body["error"]["message"]
