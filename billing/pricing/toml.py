"""A price book as a TOML file.

[[price]]
model = "smollm2-135m-instruct"
currency = "USD"
effective_from = 2025-01-01T00:00:00Z
instant = "admitted"                      # or "completed": which moment of a request rates it
hit_per_mtok = "0.02"                     # quoted decimals, currency units per 1M tokens
miss_per_mtok = "0.2"
output_per_mtok = "0.4"

[[price.window]]                          # the first open window rates
name = "offpeak"
zone = "UTC"
hours = ["16:30-00:30"]                   # [start, end), may wrap midnight; 24:00 is an end
days = ["mon", "tue"]                     # absent: every day
not_on_holidays_of = "CN"                 # absent: holidays are days like others
hit_per_mtok = "0.01"
...
"""

import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, time
from decimal import Decimal
from importlib import resources
from typing import Final, cast
from zoneinfo import available_timezones

from billing.errors import PriceInvalid
from billing.money import rate_of
from billing.pricing.book import STANDARD, Instant, PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.window import EVERY_DAY, Window, is_calendar

RATE_MIN: Final = rate_of(
    "0.001"
)  # a smaller price is one per token, typed where one per 1M tokens was meant
RATE_MAX: Final = rate_of("100000")

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|24:00)", re.ASCII)
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", re.ASCII)
_CURRENCY: Final = re.compile(r"[A-Z]{3}", re.ASCII)
_RATES: Final = {"hit_per_mtok", "miss_per_mtok", "output_per_mtok", "write_per_mtok"}
_ROW: Final = {"model", "currency", "effective_from", "instant", "standard_name", "window"} | _RATES
_WINDOW: Final = {"name", "zone", "hours", "days", "not_on_holidays_of"} | _RATES

Table = dict[str, object]


def read(text: str, place: str = "price book") -> PriceBook:
    """Read a book; ``place`` names the file in errors.

    Raises:
        PriceInvalid: says where and what, for the first thing that is wrong.
    """
    try:
        document: Table = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise PriceInvalid(place, str(error)) from error
    _only(document, {"price"}, place)
    rows = tuple(_row(table, where) for where, table in _tables(document, "price", place))
    if not rows:
        raise PriceInvalid(place, "no [[price]]")
    return PriceBook(rows)


def shipped(name: str) -> PriceBook:
    """A book that comes with Kvitto: ``demo``, or ``deepseek``, whose rows are DeepSeek's price history."""
    file = resources.files("billing.pricing") / "books" / f"{name}.toml"
    return read(file.read_text(encoding="utf-8"), f"{name}.toml")


def _row(table: Table, place: str) -> PriceRow:
    _only(table, _ROW, place)
    effective_from = table.get("effective_from")
    if (
        not isinstance(effective_from, datetime)
        or effective_from.tzinfo is None
        or effective_from.microsecond
    ):
        raise PriceInvalid(f"{place}.effective_from", "must be an instant with an offset, in whole seconds")
    instant = _text(table, "instant", place)
    if instant not in ("admitted", "completed"):
        raise PriceInvalid(f"{place}.instant", 'must be "admitted" or "completed"')
    return PriceRow(
        model=_matching(table, "model", _MODEL, place),
        currency=_matching(table, "currency", _CURRENCY, place),
        effective_from=effective_from.astimezone(UTC),
        instant=cast("Instant", instant),
        standard=_rates(table, place),
        windows=tuple(w for where, each in _tables(table, "window", place) for w in _windows(each, where)),
        standard_name=_text(table, "standard_name", place) if "standard_name" in table else STANDARD,
    )


def _windows(table: Table, place: str) -> Iterator[Window]:
    """One window for each of the hours; they share all else."""
    _only(table, _WINDOW, place)
    zone = _text(table, "zone", place)
    if zone not in available_timezones():
        raise PriceInvalid(f"{place}.zone", f"no time zone {zone!r}")
    country = _text(table, "not_on_holidays_of", place) if "not_on_holidays_of" in table else None
    if country is not None and not is_calendar(country):
        raise PriceInvalid(f"{place}.not_on_holidays_of", f"no holiday calendar of {country!r}")
    name, rates, days = _text(table, "name", place), _rates(table, place), _days(table, place)
    for start, end in _hours(table, place):
        yield Window(name, rates, start, end, zone, days, country)


def _hours(table: Table, place: str) -> Iterator[tuple[time, time]]:
    hours = _texts(table, "hours", place)
    for text in hours:
        match = _HOURS.fullmatch(text)
        if match is None:
            raise PriceInvalid(f"{place}.hours", f'{text!r} is not like "16:30-00:30"')
        yield time(int(match[1]), int(match[2])), time(int(match[3] or 0), int(match[4] or 0))


def _days(table: Table, place: str) -> frozenset[int]:
    if "days" not in table:
        return EVERY_DAY
    names = _texts(table, "days", place)
    unknown = [name for name in names if name not in _DAYS]
    if unknown:
        raise PriceInvalid(f"{place}.days", f"{unknown[0]!r} is none of {', '.join(_DAYS)}")
    return frozenset(_DAYS.index(name) for name in names)


def _rates(table: Table, place: str) -> Rates:
    return Rates(
        hit=_rate(table, "hit_per_mtok", place),
        miss=_rate(table, "miss_per_mtok", place),
        output=_rate(table, "output_per_mtok", place),
        write=_rate(table, "write_per_mtok", place) if "write_per_mtok" in table else None,
    )


def _rate(table: Table, key: str, place: str) -> int:
    text = _text(table, key, place)
    try:
        rate = rate_of(text)
    except PriceInvalid as error:
        raise PriceInvalid(f"{place}.{key}", error.reason) from error
    if rate and not RATE_MIN <= rate <= RATE_MAX:
        raise PriceInvalid(f"{place}.{key}", f"{text} is no price per 1M tokens (0, or 0.001 to 100000)")
    return rate


def _tables(table: Table, key: str, place: str) -> Iterator[tuple[str, Table]]:
    tables = table.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise PriceInvalid(f"{place}: {key}", f"must be an array of tables, [[{key}]]")
    for number, each in enumerate(tables, start=1):
        yield f"{place}: {key} {number}" if key == "price" else f"{place}, {key} {number}", each


def _only(table: Table, known: set[str], place: str) -> None:
    unknown = sorted(table.keys() - known)
    if unknown:
        raise PriceInvalid(place, f"unknown key {unknown[0]!r}")


def _text(table: Table, key: str, place: str) -> str:
    text = table.get(key)
    if not isinstance(text, str) or not text:
        raise PriceInvalid(f"{place}.{key}", "missing" if text is None else "must be a text in quotes")
    return text


def _texts(table: Table, key: str, place: str) -> list[str]:
    texts = table.get(key)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise PriceInvalid(f"{place}.{key}", "must be a list of texts")
    return texts


def _matching(table: Table, key: str, pattern: re.Pattern[str], place: str) -> str:
    text = _text(table, key, place)
    if pattern.fullmatch(text) is None:
        raise PriceInvalid(f"{place}.{key}", f"{text!r} does not look like a {key}")
    return text
