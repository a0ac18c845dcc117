"""What may be published beside what is, and what it changes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from billing.errors import PriceMissing
from billing.money import rate_text
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.toml import DAYS
from billing.pricing.window import EVERY_DAY, Window
from billing.pricing.writing import hours_text

LEAD: Final = timedelta(seconds=10)  # gateways read the book anew every two seconds
UNSEEN: Final = "takes effect before every gateway has seen it"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that a row says otherwise than the one before; None where one of them says nothing."""

    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A row of a book beside what is published.

    A row is ``new``, or published and the ``same``, or ``refused`` for a ``reason``. The changes are those
    against the published row of its name, else against the row of the same list that it follows.
    """

    row: PriceRow
    state: Literal["new", "same", "refused"]
    reason: str | None
    changes: tuple[Change, ...]


def refusal(row: PriceRow, published: PriceBook, book: PriceBook, at: datetime) -> str | None:
    """Why a row of ``book`` cannot be published at ``at``; None when it can, or is.

    Published rows never change. Where a model has prices in a currency, whoever's, gateways may be rating by
    them: another row may take effect there no sooner than 10 s after ``at``. Where a row ends, there must be
    a public price to go on with.
    """
    same = [known for known in published.rows if known.id == row.id]
    if same:
        return None if same == [row] else "is published with other prices, and published rows never change"
    priced = any((known.model, known.currency) == (row.model, row.currency) for known in published.rows)
    if priced and row.effective_from < at + LEAD:
        return UNSEEN
    if row.effective_until is not None:
        try:
            PriceBook(_public(published, book)).row(row.model, row.currency, row.effective_until)
        except PriceMissing:
            return "ends when the model has no public price: a gap"
    return None


def compare(book: PriceBook, published: PriceBook, at: datetime) -> list[Difference]:
    """Each row of ``book``, in its order, as if it were to be published at ``at``."""
    return [_difference(row, published, book, at) for row in book.rows]


def _public(*books: PriceBook) -> tuple[PriceRow, ...]:
    rows = {row.id: row for book in books for row in book.rows if row.plan is None and row.tenant_id is None}
    return tuple(rows.values())


def _difference(row: PriceRow, published: PriceBook, book: PriceBook, at: datetime) -> Difference:
    known = [each for each in published.rows if each.id == row.id]
    reason = refusal(row, published, book, at)
    state: Literal["new", "same", "refused"] = "refused" if reason else "same" if known else "new"
    was = said(known[0]) if known else followed(row, (*published.rows, *book.rows)) or {}
    now = said(row)
    changes = (Change(what, was.get(what), now.get(what)) for what in {**was, **now})
    return Difference(row, state, reason, tuple(each for each in changes if each.before != each.after))


def followed(row: PriceRow, rows: Sequence[PriceRow]) -> dict[str, str] | None:
    """What the row of the same list says that this one takes the place of; None where there is none."""
    before = sorted(_before(row, rows), key=lambda each: each.effective_from)
    return said(before[-1]) if before else None


def _before(row: PriceRow, rows: Sequence[PriceRow]) -> Iterator[PriceRow]:
    key = (row.model, row.currency, row.plan, row.tenant_id)
    for each in rows:
        same_list = (each.model, each.currency, each.plan, each.tenant_id) == key
        if same_list and each.effective_from < row.effective_from:
            yield each


def said(row: PriceRow) -> dict[str, str]:
    """What a row says, by name, as people read it."""
    said: dict[str, str] = {"rated when": row.instant}
    if row.effective_until is not None:
        said["until"] = f"{row.effective_until:%Y-%m-%dT%H:%M:%SZ}"
    for window in row.windows:
        what = f"{window.name}: hours"
        said[what] = "; ".join(filter(None, (said.get(what), _hours(window))))
    named = {row.standard_name: row.standard} | {window.name: window.rates for window in row.windows}
    for name, rates in named.items():
        for tier, of_tier in rates.offered.items():
            for bucket in ("hit", "miss", "write", "output"):
                rate = getattr(of_tier, bucket)
                if rate is not None:
                    said[f"{name}{'' if tier == 'standard' else f', {tier}'}: {bucket}"] = rate_text(rate)
    return said


def _hours(window: Window) -> str:
    days = "" if window.days == EVERY_DAY else " " + " ".join(DAYS[day] for day in sorted(window.days))
    holidays = "" if window.holidays is None else f", not on holidays of {window.holidays}"
    return f"{hours_text(window)} {window.tz}{days}{holidays}"
