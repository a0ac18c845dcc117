"""A price book as a TOML file.

[[price]]
model = "smollm2-135m-instruct"
currency = "USD"
effective_from = 2025-01-01T00:00:00Z
instant = "admitted"                      # or "completed": which moment of a request rates it
hit_per_mtok = "0.02"                     # quoted decimals, currency units per 1M tokens
miss_per_mtok = "0.2"
output_per_mtok = "0.4"

[[price.window]]                          # other rates, at these hours
name = "offpeak"
zone = "UTC"
hours = ["16:30-00:30"]                   # [start, end), may wrap midnight; 24:00 is an end
days = ["mon", "tue"]                     # absent: every day
not_on_holidays_of = "CN"                 # absent: holidays are days like others
hit_per_mtok = "0.01"
...

Optional in a row and in its windows: `write_per_mtok`, the price of cache writes, and the tables
[price.flex], [price.batch], [price.window.flex], [price.window.batch] with the full rates of these tiers.
Optional in a row: `plan = "gold"` or `tenant = "ten_…"`, whose own price it then is, and
`effective_until` of such a row.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import time
from decimal import Decimal
from importlib import resources
from typing import Final, cast
from zoneinfo import available_timezones

from billing.errors import PriceInvalid
from billing.pricing.book import STANDARD, Instant, PriceBook, PriceRow
from billing.pricing.contradictions import contradictions
from billing.pricing.lines import Lines
from billing.pricing.rates import Rates
from billing.pricing.table import Source, Table
from billing.pricing.window import EVERY_DAY, Window, is_calendar
from billing.usage import Tier

CURRENCIES: Final = ("USD", "CNY", "EUR")
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_HOURS: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|24:00)", re.ASCII)
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", re.ASCII)
_SYNTAX_LINE: Final = re.compile(r"at line (\d+)")
_PLAN: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)
_TENANT: Final = re.compile(r"ten_[A-Za-z0-9_-]{1,60}", re.ASCII)
_RATES: Final = {"hit_per_mtok", "miss_per_mtok", "output_per_mtok", "write_per_mtok"}
_TIERED: Final = {"flex", "batch"} | _RATES
_OWNED: Final = {"plan", "tenant", "effective_until"}
_ROW: Final = {"model", "currency", "effective_from", "instant", "standard_name", "window"} | _OWNED | _TIERED
_WINDOW: Final = {"name", "zone", "hours", "days", "not_on_holidays_of"} | _TIERED


def read(text: str, file: str = "price book") -> PriceBook:
    """Read a book; ``file`` is its name in errors.

    Raises:
        PriceInvalid: says where and what, for the first thing that is wrong.
    """
    rows, faults = examine(text, file)
    if faults:
        raise faults[0]
    return PriceBook(rows)


def examine(text: str, file: str) -> tuple[tuple[PriceRow, ...], list[PriceInvalid]]:
    """Read the rows that are right, and find the first fault of each that is not."""
    try:
        document = Table(tomllib.loads(text, parse_float=Decimal), Source(file, Lines.of(text)))
    except (ValueError, RecursionError) as error:  # tomllib's own errors are ValueErrors, too
        line = _SYNTAX_LINE.search(str(error))
        return (), [PriceInvalid("TOML", str(error), file, int(line[1]) if line else text.count("\n") + 1)]
    try:
        document.only({"price"})
        tables = list(document.tables("price"))
    except PriceInvalid as fault:
        return (), [fault]
    rows: dict[str, PriceRow] = {}
    faults = [] if tables else [document.fault("no [[price]]")]
    for table in tables:
        try:
            row = _row(table)
            if row.id in rows:
                raise table.fault("another row of the same model and currency takes effect at this instant")
            rows[row.id] = row
        except PriceInvalid as fault:
            faults.append(fault)
    return tuple(rows.values()), faults


def lines(text: str) -> dict[str, int]:
    """On which line the table of each row begins, by the row's id, in the text of a book that can be read."""
    document = Table(tomllib.loads(text, parse_float=Decimal), Source("price book", Lines.of(text)))
    return {_row(table).id: table.source.lines.line(table.path) for table in document.tables("price")}


def shipped(name: str) -> PriceBook:
    """A book that comes with Kvitto: ``demo``, or ``deepseek``, whose rows are DeepSeek's price history."""
    file = resources.files("billing.pricing") / "books" / f"{name}.toml"
    return read(file.read_text(encoding="utf-8"), f"{name}.toml")


def _row(table: Table) -> PriceRow:
    table.only(_ROW)
    windows = [(each, window) for each in table.tables("window") for window in _windows(each)]
    row = PriceRow(
        model=table.text("model", _MODEL),
        currency=table.choice("currency", CURRENCIES),
        effective_from=table.instant("effective_from"),
        instant=cast("Instant", table.choice("instant", ("admitted", "completed"))),
        standard=_rates(table),
        windows=tuple(window for _, window in windows),
        standard_name=table.text("standard_name") if "standard_name" in table.values else STANDARD,
        plan=table.text("plan", _PLAN) if "plan" in table.values else None,
        tenant_id=table.text("tenant", _TENANT) if "tenant" in table.values else None,
        effective_until=table.instant("effective_until") if "effective_until" in table.values else None,
    )
    for position, reason in contradictions(row):
        raise (table if position is None else windows[position][0]).fault(reason)
    return row


def _windows(table: Table) -> Iterator[Window]:
    """One window for each of the hours; they share all else."""
    table.only(_WINDOW)
    zone = table.text("zone")
    if zone not in available_timezones():
        raise table.fault(f"no time zone {zone!r}", "zone")
    country = table.text("not_on_holidays_of") if "not_on_holidays_of" in table.values else None
    if country is not None and not is_calendar(country):
        raise table.fault(f"no holiday calendar of {country!r}", "not_on_holidays_of")
    name, rates, days = table.text("name"), _rates(table), _days(table)
    for start, end in _hours(table):
        yield Window(name, rates, start, end, zone, days, country)


def _hours(table: Table) -> Iterator[tuple[time, time]]:
    for text in table.texts("hours"):
        match = _HOURS.fullmatch(text)
        if match is None:
            raise table.fault(f'{text!r} is not like "16:30-00:30"', "hours")
        yield time(int(match[1]), int(match[2])), time(int(match[3] or 0), int(match[4] or 0))


def _days(table: Table) -> frozenset[int]:
    if "days" not in table.values:
        return EVERY_DAY
    names = table.texts("days")
    unknown = [name for name in names if name not in DAYS]
    if unknown:
        raise table.fault(f"{unknown[0]!r} is none of {', '.join(DAYS)}", "days")
    return frozenset(DAYS.index(name) for name in names)


def _rates(table: Table) -> Rates:
    return replace(
        _rates_of_tier(table), flex=_optional_tier(table, "flex"), batch=_optional_tier(table, "batch")
    )


def _optional_tier(table: Table, tier: Tier) -> Rates | None:
    if tier not in table.values:
        return None
    of_tier = table.table(tier)
    of_tier.only(_RATES)
    return _rates_of_tier(of_tier)


def _rates_of_tier(table: Table) -> Rates:
    return Rates(
        hit=table.rate("hit_per_mtok"),
        miss=table.rate("miss_per_mtok"),
        output=table.rate("output_per_mtok"),
        write=table.rate("write_per_mtok") if "write_per_mtok" in table.values else None,
    )
