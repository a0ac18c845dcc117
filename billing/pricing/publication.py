"""What may be published beside what is, and what it changes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from billing.errors import PriceMissing
from billing.money import rate_text
from billing.pricing.book import Placement, PriceBook, PriceRow
from billing.pricing.toml import DAYS
from billing.pricing.window import EVERY_DAY, Window
from billing.pricing.writing import hours_text

LEAD: Final = timedelta(seconds=10)  # gateways read the book anew every two seconds
REQUEST_MAX: Final = timedelta(seconds=600)  # from admission to its end; gateways allow no longer ones
UNSEEN: Final = "takes effect before every gateway has seen it"
HELD: Final = (
    "takes effect while requests run that are rated when they complete, and were held without knowing it:"
    f" {(LEAD + REQUEST_MAX).seconds} s from now none will"
)

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


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
    them: another row may take effect there no sooner than 10 s after ``at``. If one of those prices rates
    requests when they complete, it may not before the longest of them has ended that was held by the book as
    it was. Where a row ends, there must be a public price to go on with.
    """
    same = [known for known in published.rows if known.id == row.id]
    if same:
        return None if same == [row] else "is published with other prices, and published rows never change"
    beside = _of_models(published, {(row.model, row.currency)})
    if beside and (reason := _too_soon(row.effective_from, beside, at)) is not None:
        return reason
    if row.effective_until is not None:
        try:
            PriceBook(_public(published, book)).row(row.model, row.currency, row.effective_until)
        except PriceMissing:
            return "ends when the model has no public price: a gap"
    return None


def placement_refusal(placement: Placement, published: PriceBook, at: datetime) -> str | None:
    """Why a tenant cannot be placed at ``at``, likewise: it changes the prices of models of both plans."""
    plans = {placement.plan, *(p.plan for p in published.placements if p.tenant_id == placement.tenant_id)}
    models = {(row.model, row.currency) for row in published.rows if row.plan and row.plan in plans}
    return _too_soon(placement.effective_from, _of_models(published, models), at)


def _too_soon(effective_from: datetime, beside: Sequence[PriceRow], at: datetime) -> str | None:
    if effective_from < at + LEAD:
        return UNSEEN
    if effective_from < at + LEAD + REQUEST_MAX and any(_rates_running(row, beside, at) for row in beside):
        return HELD
    return None


def _rates_running(row: PriceRow, beside: Sequence[PriceRow], at: datetime) -> bool:
    """Whether requests may run that it rates when they complete, and that were held by ``beside`` alone."""
    if row.instant == "admitted" or row.effective_from >= at + LEAD:
        return False
    ends = [each.effective_from for each in beside if _follows(each, row)]
    return min([*ends, row.effective_until or _NEVER]) > at - REQUEST_MAX


def _of_models(book: PriceBook, models: Collection[tuple[str, str]]) -> list[PriceRow]:
    return [row for row in book.rows if (row.model, row.currency) in models]


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
    before = [each for each in rows if _follows(row, each)]
    return said(max(before, key=lambda each: each.effective_from)) if before else None


def _follows(row: PriceRow, other: PriceRow) -> bool:
    """Whether it begins later in the same list."""
    one, two = ((each.model, each.currency, each.plan, each.tenant_id) for each in (row, other))
    return one == two and row.effective_from > other.effective_from


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
