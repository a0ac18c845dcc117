"""A price book as the TOML text that `billing.pricing.toml` reads back."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, time
from itertools import groupby

from billing.money import rate_text
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.pricing.toml import DAYS
from billing.pricing.window import EVERY_DAY, Window


def write(book: PriceBook) -> str:
    """All rows, in their order; who is on which plan is no part of a file."""
    return "\n".join("".join(f"{line}\n" for line in _row(row)) for row in book.rows)


def hours_text(window: Window) -> str:
    """``16:30-00:30``; midnight as an end is ``24:00``."""
    end = window.end.isoformat("minutes") if window.end != time(0) else "24:00"
    return f"{window.start.isoformat('minutes')}-{end}"


def _row(row: PriceRow) -> Iterator[str]:
    yield "[[price]]"
    owner = {"plan": row.plan, "tenant": row.tenant_id}
    texts = {"model": row.model, "currency": row.currency, **owner, "instant": row.instant}
    yield from (f"{key} = {_text(text)}" for key, text in texts.items() if text is not None)
    yield f"effective_from = {_instant(row.effective_from)}"
    if row.effective_until is not None:
        yield f"effective_until = {_instant(row.effective_until)}"
    yield f"standard_name = {_text(row.standard_name)}"
    yield from _rates(row.standard, "price")
    for window, hours in groupby(row.windows, lambda window: replace(window, start=time(0), end=time(0))):
        yield from ("", "[[price.window]]", f"name = {_text(window.name)}", f"zone = {_text(window.tz)}")
        yield f"hours = [{', '.join(_text(hours_text(each)) for each in hours)}]"
        if window.days != EVERY_DAY:
            yield f"days = [{', '.join(_text(DAYS[day]) for day in sorted(window.days))}]"
        if window.holidays is not None:
            yield f"not_on_holidays_of = {_text(window.holidays)}"
        yield from _rates(window.rates, "price.window")


def _rates(rates: Rates, table: str) -> Iterator[str]:
    for tier, of_tier in rates.offered.items():
        if tier != "standard":
            yield f"[{table}.{tier}]"
        for bucket in ("hit", "miss", "write", "output"):
            rate = getattr(of_tier, bucket)
            if rate is not None:
                yield f"{bucket}_per_mtok = {_text(rate_text(rate))}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _instant(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"
