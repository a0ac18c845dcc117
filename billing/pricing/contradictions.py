"""What a price row must not say, however it was written."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from itertools import combinations
from typing import Final
from zoneinfo import ZoneInfo

from billing.pricing.book import PriceRow
from billing.pricing.window import Window

Contradiction = tuple[int | None, str]

_A_MONDAY: Final = date(2001, 1, 1)
_WEEK_DAYS: Final = 7
_YEAR_DAYS: Final = 366


def contradictions(row: PriceRow) -> Iterator[Contradiction]:
    """Find what is wrong with a row: the position of the window at fault (None: the row itself), and why.

    Gaps in time cannot be: a public row holds until the next one, and where no window is open the row's own
    rates do. What can be missing is a price of a tier, or of cache writes, at some hours or in some tier.
    """
    if row.plan is not None and row.tenant_id is not None:
        yield None, "it is a plan's or a tenant's, not both"
    if row.effective_until is not None:
        if row.plan is None and row.tenant_id is None:
            yield None, "the public price never ends: the next row takes its place"
        if row.effective_until < row.effective_from:
            yield None, "it ends before it begins"
    for position, rates in ((None, row.standard), *((n, w.rates) for n, w in enumerate(row.windows))):
        for tier, of_tier in rates.offered.items():
            if of_tier.hit > of_tier.miss:
                yield position, f"a hit costs more than a miss ({tier})"
            if (of_tier.write is None) != (row.standard.write is None):
                yield (
                    position,
                    f"a gap: cache writes have a price in one part of the row only ({tier})",
                )
        if rates.offered.keys() != row.standard.offered.keys():
            differing = ", ".join(sorted(rates.offered.keys() ^ row.standard.offered.keys()))
            yield position, f"a gap: the row and this window do not offer the same tiers ({differing})"
    yield from _ambiguous(row)
    yield from _overlapping(row)


def _ambiguous(row: PriceRow) -> Iterator[Contradiction]:
    """A charge names the window that rated it, so a name stands for one set of rates."""
    named = {row.standard_name: row.standard}
    for position, window in enumerate(row.windows):
        if named.setdefault(window.name, window.rates) != window.rates:
            yield position, f"{window.name!r} is also the name of other rates in this row"


def _overlapping(row: PriceRow) -> Iterator[Contradiction]:
    """Two windows that are ever open at once are so when one of them opens. Holidays keep none apart."""
    zones = {window.tz for window in row.windows}
    windows = [replace(window, holidays=None) for window in row.windows]
    first, days = row.effective_from.date(), _YEAR_DAYS
    if len(zones) <= 1:  # clocks of one zone: any week will do, in a zone without summer time
        first, days = _A_MONDAY, _WEEK_DAYS
        windows = [replace(window, tz="UTC") for window in windows]
    for (_, one), (position, other) in combinations(enumerate(windows), 2):
        for at in (*_openings(one, first, days), *_openings(other, first, days)):
            if one.contains(at) and other.contains(at):
                when = f"{at:%A at %H:%M}, {at.tzinfo if len(zones) > 1 else row.windows[position].tz}"
                yield position, f"{other.name!r} is open at the same time as {one.name!r}: {when}"
                break


def _openings(window: Window, first: date, days: int) -> Iterator[datetime]:
    for day in range(days):
        yield datetime.combine(first + timedelta(days=day), window.start, ZoneInfo(window.tz))
