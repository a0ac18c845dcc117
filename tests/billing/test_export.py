"""Files of usage: every form says the same, to the femto-unit, whatever it is grouped by."""

import csv
import io
import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import combinations
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from sqlalchemy import text

from billing.db.access import OPERATOR_READ
from billing.errors import IntervalInvalid, ReportInvalid, StoreUnavailable
from billing.interval import Interval
from billing.money import FEMTO_PER_UNIT, Femto, decimal_of, femto_of
from billing.reports.export.column import REQUESTS, totals_columns
from billing.reports.export.delimited import Delimited, safe
from billing.reports.export.order import ExportOrder, Form, order_of
from billing.reports.export.service import Exports, Written
from billing.reports.rollup import Rollups
from billing.reports.selection import Selection
from billing.reports.service import Reports
from billing.reports.usage_total import COLUMN_OF, DIMENSIONS, STRETCHES, TOKENS, Dimension
from billing.settlement.posting import post
from tests.billing.usage_month import COMPANY, KEYS, MONTH, ZONE, Month, charges, generated

BERLIN = ZoneInfo(ZONE)
ORDER = ExportOrder("requests", "csv", MONTH, ZONE)
FORMS: tuple[Form, ...] = ("csv", "jsonl", "parquet")
Row = dict[str, Any]


async def file_of(house: Any, order: ExportOrder) -> tuple[bytes, Written]:
    file = io.BytesIO()

    async def take(piece: bytes) -> None:
        file.write(piece)

    written = await Exports(house.database).write(order, take)
    assert written.size_bytes == len(file.getvalue())
    return file.getvalue(), written


async def rows_of(house: Any, order: ExportOrder) -> list[Row]:
    """Rows as whoever opens the file gets them; the amount exact, in femto-units."""
    content, written = await file_of(house, order)
    rows = list(READ[order.form](content))
    assert written.rows == len(rows)
    for row in rows:
        if "charge" in row:
            row["charge"] = femto_of(f"{Decimal(row['charge']):f}")
    return rows


def read_csv(content: bytes) -> Iterator[Row]:
    text = content.decode()
    assert text.endswith("\r\n")
    names, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    plain = [name.partition("[")[0] for name in names]
    for row in rows:
        yield {name: int(cell) if is_count(name) else cell for name, cell in zip(plain, row, strict=True)}


def read_jsonl(content: bytes) -> Iterator[Row]:
    return map(json.loads, content.decode().splitlines())


def read_parquet(content: bytes) -> Iterator[Row]:
    for row in parquet.read_table(io.BytesIO(content)).to_pylist():
        yield {
            name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()
        }


def is_count(name: str) -> bool:
    return name in {*TOKENS, "requests"} or name.endswith("_tokens")


READ: dict[Form, Callable[[bytes], Iterator[Row]]] = {
    "csv": read_csv,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
}


@pytest.fixture
async def month(house: Any) -> Month:
    made = await generated(house, seed=6)
    await made.settle()
    return made


def grouped(month: Month, one: Dimension) -> Callable[[Any], Any]:
    """What of an event a dimension is."""

    def begins(event: Any) -> Any:
        local = event.rated_at.astimezone(BERLIN)
        if one == "minute":
            return local.replace(second=0, microsecond=0)
        local = local.replace(minute=0, second=0, microsecond=0)
        if one != "hour":
            local = local.replace(hour=0, fold=0)
        if one == "week":
            local -= timedelta(days=local.weekday())
        return local.replace(day=1) if one == "month" else local

    of_event: dict[str, Callable[[Any], Any]] = {
        "tenant": lambda event: event.tenant_id,
        "project": lambda event: month.projects[event.key_id],
        "key": lambda event: event.key_id,
        "model": lambda event: event.model,
        "traffic_class": lambda event: event.traffic_class,
        "price_row": lambda event: event.charge.price_row_id,
        "window": lambda event: event.charge.window,
        "tier": lambda event: event.charge.tier,
    }
    return of_event.get(one, lambda event: begins(event).astimezone(UTC))


def shown(row: Row, one: Dimension) -> Any:
    value = row[COLUMN_OF.get(one, one)]
    return datetime.fromisoformat(value).astimezone(UTC) if one in STRETCHES else value


def summed(rows: list[Row], *by: Dimension) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for row in rows:
        group = (tuple(shown(row, one) for one in by), row["currency"])
        sums[group] = sums.get(group, 0) + row["charge"]
    return sums


@pytest.mark.parametrize("form", FORMS)
async def test_every_grouping_of_every_form_adds_up_to_the_same_to_the_femto_unit(
    house: Any, month: Month, form: Form
) -> None:
    """BerriAI/litellm#32581, BerriAI/litellm#28009: also by two dimensions, from events and from rollups.

    The month has two currencies, which are never added, and an hour that clocks show twice.
    """
    for built in (False, True):
        if built:
            await Rollups(house.database, lag=timedelta(0)).build()
        for by in (*combinations(DIMENSIONS, 1), *combinations(DIMENSIONS, 2)):
            if len(by) == 2 and (form != "csv" or not built):
                continue
            for tenant in (month.house, month.other):
                order = replace(ORDER, content="totals", form=form, by=by, tenant_id=tenant.tenant_id)
                keys = [grouped(month, one) for one in by]
                events = month.of(tenant.tenant_id)
                expected = charges(events, lambda e: tuple(key(e) for key in keys))  # noqa: B023  called at once
                assert summed(await rows_of(house, order), *by) == expected, (by, form, built)


@pytest.mark.parametrize("form", FORMS)
async def test_requests_are_told_whole_and_agree_with_what_was_settled(
    house: Any, month: Month, form: Form
) -> None:
    """BerriAI/litellm#22176: the month's first instant is in it, its end is not."""
    for tenant in (month.house, month.other):
        rows = await rows_of(house, replace(ORDER, form=form, tenant_id=tenant.tenant_id))
        inside = [e for e in month.of(tenant.tenant_id) if MONTH.since <= e.rated_at < MONTH.until]
        inside.sort(key=lambda e: (e.rated_at, e.request_id.bytes))
        assert [list(row) for row in rows] == [[column.name for column in REQUESTS]] * len(inside)
        for row, event in zip(rows, inside, strict=True):
            assert row["request_id"] == str(event.request_id)
            assert (row["charge"], row["currency"]) == (event.charge.amount, event.charge.currency)
            assert (row["tenant_id"], row["key_id"]) == (event.tenant_id, event.key_id)
            assert row["project_id"] == month.projects[event.key_id]
            assert [row[name] for name in TOKENS[:-1]] == [getattr(event.usage, name) for name in TOKENS[:-1]]
            assert (row["status"], row["tier"], row["price_window"], row["price_row_id"]) == (
                event.status, event.charge.tier, event.charge.window, event.charge.price_row_id,
            )  # fmt: skip
            instant = datetime.fromisoformat(row["rated_at"])
            assert (instant, instant.utcoffset()) == (
                event.rated_at,
                event.rated_at.astimezone(BERLIN).utcoffset(),
            )


async def test_console_totals_and_all_three_forms_say_the_same(house: Any, month: Month) -> None:
    totals = await Reports(house.database).totals(replace(ORDER, content="totals", by=("key",)).question)
    told = {(total.group["key"], total.currency): total.charge for total in totals}
    for form in FORMS:
        rows = await rows_of(house, replace(ORDER, content="totals", form=form, by=("key",)))
        assert {(row["key_id"], row["currency"]): row["charge"] for row in rows} == told
        assert {row["key"] for row in rows} >= ({safe(key) for key in KEYS} if form == "csv" else set(KEYS))


async def test_filters_choose_requests_and_their_totals_alike(house: Any, month: Month) -> None:
    key_id = month.events[0].key_id
    home = month.projects[key_id]
    tests: tuple[tuple[Selection, Callable[[Any], bool]], ...] = (
        (Selection(keys=(key_id,)), lambda e: e.key_id == key_id),
        (Selection(projects=(home,)), lambda e: month.projects[e.key_id] == home),
        (Selection(models=("chat",)), lambda e: e.model == "chat"),
        (Selection(traffic_classes=("agent",)), lambda e: e.traffic_class == "agent"),
        (
            Selection(tiers=("flex",), windows=("peak", "standard")),
            lambda e: e.charge.tier == "flex" and e.charge.window in ("peak", "standard"),
        ),
        (Selection(statuses=("aborted",)), lambda e: e.status == "aborted"),
        (Selection(statuses=("failed",)), lambda e: e.status == "failed"),
    )
    await Rollups(house.database, lag=timedelta(0)).build()
    both = {month.house.tenant_id, month.other.tenant_id}
    for only, holds in tests:
        expected = charges(filter(holds, month.events), lambda _: ())
        for content in ("requests", "totals"):
            order = replace(ORDER, content=content, only=only, by=("tenant",) if content == "totals" else ())
            rows = [row for row in await rows_of(house, order) if row["tenant_id"] in both]
            assert rows, only
            assert summed(rows) == expected, (only, content)


async def test_a_tenants_export_holds_no_row_of_another(house: Any, month: Month) -> None:
    for content in ("requests", "totals", "focus"):
        order = replace(ORDER, content=content, tenant_id=month.other.tenant_id)
        content_, _ = await file_of(house, order)
        assert month.house.tenant_id.encode() not in content_
        stolen = replace(order, only=Selection(keys=(month.house.key_id,)))
        assert (await file_of(house, stolen))[1].rows == 0


async def test_no_cell_is_a_formula_and_names_come_back_whole(house: Any, month: Month) -> None:
    """Names with commas, quotes, line breaks, CJK; OWASP's CSV injection: a mark before a formula."""
    content, _ = await file_of(house, ORDER)
    rows = list(csv.reader(io.StringIO(content.decode(), newline=""), strict=True))
    assert {len(row) for row in rows} == {len(REQUESTS)}
    starts = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
    assert not [cell for row in rows for cell in row if cell.startswith(starts)]
    assert {row[6] for row in rows[1:]} == {safe(key) for key in KEYS}
    assert {row[2] for row in rows[1:] if row[1] == month.house.tenant_id} == {
        f"'{(await house.tenancy.tenant(month.house.tenant_id)).name}"
    }
    assert COMPANY.encode() not in content, "its quotes are doubled"
    lone = content.replace(b"\r\n", b"")
    assert lone.count(b"\n") > 0, "a name's own line break stays what it is"
    json_rows = await rows_of(house, replace(ORDER, form="jsonl"))
    assert {row["key"] for row in json_rows} == set(KEYS)


@given(st.lists(st.lists(st.text(max_size=9), min_size=2, max_size=2), max_size=9), st.integers(1, 9))
async def test_rows_cut_anywhere_are_put_together_again(rows: list[list[str]], length: int) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    rows_lf, out = text.getvalue().encode(errors="replace"), bytearray()

    async def take(piece: bytes) -> None:
        out.extend(piece)

    form = Delimited(b"", take)
    for place in range(0, len(rows_lf), length):
        await form.take(rows_lf[place : place + length])
    await form.end()
    expected = io.StringIO()
    csv.writer(expected, lineterminator="\r\n", quoting=csv.QUOTE_ALL).writerows(rows)
    assert bytes(out) == expected.getvalue().encode(errors="replace")
    assert form.rows == len(rows)


async def test_an_amount_of_any_size_is_written_as_decimal_of_writes_it(house: Any) -> None:
    """BerriAI/litellm#8867: exact decimals, never binary noise, in every form."""
    amounts = [0, 1, 10, FEMTO_PER_UNIT, FEMTO_PER_UNIT + 10**14, 10**35 - 1]
    for number, amount in enumerate(amounts):
        event = house.event(number)
        await insert_charged(house, event, amount)
    order = replace(
        ORDER,
        interval=Interval.of_days(date(2026, 11, 2), date(2026, 11, 2), "UTC"),
        tenant_id=house.tenant_id,
    )
    for form in ("csv", "jsonl"):
        content, _ = await file_of(house, replace(order, form=form))
        assert sorted(row["charge"] for row in READ[form](content)) == sorted(
            decimal_of(Femto(a)) for a in amounts
        )
    rows = await rows_of(house, replace(order, form="parquet"))
    assert sorted(row["charge"] for row in rows) == amounts


async def insert_charged(house: Any, event: Any, amount: int) -> None:
    from billing.db.access import SETTLER
    from billing.settlement.repository import insert_events

    charge = replace(event.charge, output=Femto(0), cache_hit=Femto(0), cache_miss=Femto(amount))
    async with house.database.transaction(SETTLER) as connection:
        await insert_events(connection, [replace(event, charge=charge)])


@pytest.mark.parametrize("form", FORMS)
async def test_an_empty_interval_is_a_header_and_no_rows(house: Any, form: Form) -> None:
    nothing = Interval(MONTH.since, MONTH.since)
    for content in ("requests", "totals", "focus"):
        content_, written = await file_of(house, replace(ORDER, content=content, form=form, interval=nothing))
        assert written.rows == 0
        if form == "csv":
            assert content_.count(b"\r\n") == 1
            assert (b"rated_at[Europe/Berlin]" in content_) == (content == "requests")
        elif form == "parquet":
            table = parquet.read_table(io.BytesIO(content_))
            assert table.num_rows == 0
            assert table.schema.metadata[b"kvitto.zone"] == b"Europe/Berlin"
        else:
            assert content_ == b""


def test_what_means_nothing_is_refused_by_its_name() -> None:
    with pytest.raises(IntervalInvalid, match="is before"):
        Interval(MONTH.until, MONTH.since)
    with pytest.raises(IntervalInvalid, match="Mars"):
        replace(ORDER, zone="Mars/Olympus")
    for change, field in (
        ({"content": "totals", "by": ("colour",)}, "by"),
        ({"content": "requests", "by": ("model",)}, "by"),
        ({"content": "everything"}, "content"),
        ({"form": "xlsx"}, "form"),
        ({"step": "year"}, "step"),
    ):
        with pytest.raises(ReportInvalid) as refused:
            replace(ORDER, **change)
        assert refused.value.field == field
    for wrong in ({"statuses": ("lost",)}, {"tiers": ("gold",)}, {"traffic_classes": ("bulk",)}):
        with pytest.raises(ReportInvalid, match="is not one of"):
            Selection(**wrong)
    with pytest.raises(ReportInvalid, match="at most 100"):
        Selection(keys=tuple(map(str, range(101))))


def test_an_order_travels_as_json_and_names_its_file() -> None:
    order = replace(ORDER, content="totals", by=("key", "day"), only=Selection(models=("m",)), tenant_id="t")
    assert order_of(json.loads(json.dumps(order.to_builtins()))) == order
    assert ORDER.file_name == "kvitto_requests_2026-10-01_2026-11-01_Europe-Berlin.csv"
    cut = Interval(datetime(2026, 10, 1, 9, 15, tzinfo=UTC), MONTH.until)
    assert replace(ORDER, interval=cut, form="parquet").file_name == (
        "kvitto_requests_2026-10-01T111500_2026-11-01_Europe-Berlin.parquet"
    )


async def test_a_parquet_file_has_exact_types(house: Any, month: Month) -> None:
    content, _ = await file_of(house, replace(ORDER, form="parquet"))
    schema = parquet.read_schema(io.BytesIO(content))
    assert schema.field("charge").type == pa.decimal128(38, 15)
    assert schema.field("rated_at").type == pa.timestamp("us", tz=ZONE)
    assert schema.field("cache_hit").type == pa.int64()
    assert schema.names == [column.name for column in REQUESTS]
    assert schema.metadata[b"kvitto.until"] == b"2026-11-01T00:00:00+01:00"


def test_columns_stand_where_they_are_promised() -> None:
    assert [column.name for column in totals_columns(("day", "tenant", "price_row"))] == [
        "day", "tenant_id", "tenant", "price_row_id", "requests", *TOKENS, "charge", "currency",
    ]  # fmt: skip


async def test_a_file_that_cannot_be_finished_is_an_error_and_not_a_shorter_file(
    house: Any, month: Month
) -> None:
    async def full(piece: bytes) -> None:
        raise OSError(28, "no space left on device")

    with pytest.raises(OSError, match="no space"):
        await Exports(house.database).write(ORDER, full)
    assert (await file_of(house, ORDER))[1].rows, "the connection is fit to be used again"
    assert issubclass(StoreUnavailable, Exception)


FILL = """
    INSERT INTO usage_event (request_id, tenant_id, key_id, model, status, traffic_class, admitted_at,
        rated_at, cache_hit, cache_owed, cache_write, cache_miss, output, reasoning, charge, currency,
        price_row_id, price_window, tier, attempts)
    SELECT CAST(lpad(to_hex(CAST(extract(epoch FROM at) * 1000 AS bigint)), 12, '0') || '7'
            || substr(md5(tenant_id || n), 1, 3) || '8' || substr(md5(tenant_id || n), 4, 15) AS uuid),
        tenant_id, key_id, model, status, traffic_class, at, at, cache_hit, cache_owed, cache_write,
        cache_miss, output, reasoning, charge + n, currency, price_row_id, price_window, tier, attempts
    FROM usage_event, generate_series(1, :rows) AS n, LATERAL (
        SELECT rated_at + n * interval '1.003 milliseconds'
    ) AS later(at)
    WHERE request_id = :request_id
"""


async def test_memory_stays_flat_however_many_rows_there_are(house: Any) -> None:
    """200,000 rows are 72 MB of CSV and 128 MB of JSON: a megabyte is held, and a row group of Parquet."""
    await post(house.database, [house.event()])
    async with house.database.transaction(OPERATOR_READ) as connection:
        await connection.execute(text("RESET ROLE"))  # the tests' account may do everything
        await connection.execute(text("SET TRANSACTION READ WRITE"))
        await connection.execute(text(FILL), {"rows": 200_000, "request_id": house.request_id(0)})
    day = Interval.of_days(date(2026, 11, 2), date(2026, 11, 2), "UTC")
    for form in FORMS:
        order = replace(ORDER, interval=day, form=form, tenant_id=house.tenant_id)
        told: list[int] = []

        async def forget(piece: bytes) -> None:
            assert len(piece) < 2**22

        before = pa.total_allocated_bytes()
        tracemalloc.start()
        try:
            written = await Exports(house.database).write(order, forget, told.append)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (written.rows, told[-1]) == (200_001, 200_001)
        assert told == sorted(told)
        assert peak < (40 if form == "parquet" else 4) * 2**20, f"{form}: {peak / 2**20:.1f} MiB"
        assert pa.total_allocated_bytes() - before < 2**20
