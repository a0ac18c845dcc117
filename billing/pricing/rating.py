"""Usage times rate at an instant is a charge. Pure, whole numbers, no rounding."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from billing.errors import TierMissing, UsageInvalid
from billing.money import Femto
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.rates import Rates
from billing.usage import Tier, TokenUsage

_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Charge:
    """What a request costs, by bucket, and what rated it: enough to derive it again."""

    cache_hit: Femto
    cache_owed: Femto
    cache_write: Femto
    cache_miss: Femto
    output: Femto
    currency: str
    price_row_id: str
    window: str
    rated_at: datetime
    tier: Tier = "standard"

    @property
    def amount(self) -> Femto:
        """The whole charge."""
        return Femto(self.cache_hit + self.cache_owed + self.cache_write + self.cache_miss + self.output)


@dataclass(frozen=True, slots=True)
class WorstCase:
    """The most a request may use, and the instants between which it may be rated."""

    prompt_tokens: int
    output_tokens_max: int
    admitted_at: datetime
    completes_by: datetime
    tier: Tier = "standard"


def rate(
    book: PriceBook, model: str, currency: str, usage: TokenUsage, at: datetime, tier: Tier = "standard"
) -> Charge:
    """Price a usage at the instant ``at``.

    Raises:
        PriceMissing: no row is in force.
        TierMissing: the row in force does not offer the tier.
        UsageInvalid: tokens in ``cache_write`` where the book does not price writes.
    """
    return charge(book.row(model, currency, at), usage, at, tier)


def charge(row: PriceRow, usage: TokenUsage, at: datetime, tier: Tier = "standard") -> Charge:
    """Likewise, by the row that is in force then."""
    window, offered = row.rates_at(at)
    rates = _of_tier(row, offered, tier)
    if usage.cache_write and rates.write is None:
        raise UsageInvalid(f"{usage.cache_write} tokens of cache_write, which {row.id} does not price")
    return Charge(
        cache_hit=Femto(usage.cache_hit * rates.hit),
        cache_owed=Femto(usage.cache_owed * rates.hit),
        cache_write=Femto(usage.cache_write * (rates.write or 0)),
        cache_miss=Femto(usage.cache_miss * rates.miss),
        output=Femto(usage.output * rates.output),
        currency=row.currency,
        price_row_id=row.id,
        window=window,
        rated_at=at,
        tier=tier,
    )


def rating_instant(row: PriceRow, admitted_at: datetime, completed_at: datetime) -> datetime:
    """The instant that rates a request, by the rule of the row in force when it was admitted."""
    return admitted_at if row.instant == "admitted" else completed_at


def worst_case(book: PriceBook, model: str, currency: str, case: WorstCase) -> Femto:
    """The most a request can cost: its hold.

    The whole prompt at the miss rate (or any dearer input rate), ``output_tokens_max`` at the output rate, in
    the dearest window that may rate it. No charge for at most these tokens within the case is higher.

    Raises:
        PriceMissing, TierMissing: at some instant that may rate it, it has no price.
    """
    assert case.admitted_at <= case.completes_by
    return Femto(
        max(
            case.prompt_tokens * rates.dearest_input + case.output_tokens_max * rates.output
            for rates in _rates_during(book, model, currency, case)
        )
    )


def _rates_during(book: PriceBook, model: str, currency: str, case: WorstCase) -> Iterator[Rates]:
    """Rates of every row and window that may rate the request."""
    admission = book.row(model, currency, case.admitted_at)
    latest = rating_instant(admission, case.admitted_at, case.completes_by)
    changes = book.changes(model, currency, case.admitted_at, latest)
    if latest - case.admitted_at >= _DAY:
        for at in (case.admitted_at, *changes):
            row = book.row(model, currency, at)
            for rates in (row.standard, *(window.rates for window in row.windows)):
                yield _of_tier(row, rates, case.tier)
        return
    for at in (*changes, *_instants(case.admitted_at, latest)):
        row = book.row(model, currency, at)
        yield _of_tier(row, row.rates_at(at)[1], case.tier)


def _of_tier(row: PriceRow, rates: Rates, tier: Tier) -> Rates:
    of_tier = rates.of(tier)
    if of_tier is None:
        raise TierMissing(row.model, row.currency, tier)
    return of_tier


def _instants(first: datetime, last: datetime) -> Iterator[datetime]:
    """``first`` and each whole minute up to ``last``: windows and time zones change on whole minutes only."""
    yield first
    at = first.replace(second=0, microsecond=0) + _MINUTE
    while at <= last:
        yield at
        at += _MINUTE
