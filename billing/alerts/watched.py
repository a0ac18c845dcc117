"""What is watched, and when it is told. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

from billing.errors import PriceMissing
from billing.money import Femto, decimal_of
from billing.notify.notice import Notice, instant_text
from billing.pricing.book import PriceBook, PriceRow
from billing.pricing.publication import said
from billing.tenancy.rules.rule import KeptBudget

LEVELS: Final = (100, 80)  # per cent of a budget; the highest that is reached is told
AHEAD: Final = (timedelta(days=1), timedelta(days=7))  # of a key's end; the nearest that has begun is told

_TICK: Final = timedelta(microseconds=1)
_LAST: Final = timedelta(days=366 * 100)


@dataclass(frozen=True, slots=True)
class BalanceAlert:
    """Tells once that the balance is below ``threshold``, and again only after it has recovered.

    Recovered is a tenth above the threshold: a balance that wavers about it is told once.
    """

    tenant_id: str
    threshold: Femto
    low: bool = False
    occasions: int = 0

    def seen(self, balance: Femto) -> Self:
        """The alert after this balance was looked at; another occasion where it is to be told."""
        if not self.low and balance < self.threshold:
            return replace(self, low=True, occasions=self.occasions + 1)
        if self.low and balance * 10 >= self.threshold * 11:
            return replace(self, low=False)
        return self

    def notice(self, balance: Femto, currency: str, at: datetime) -> Notice:
        """What is told of the present occasion."""
        amounts = {"balance": decimal_of(balance), "threshold": decimal_of(self.threshold)}
        occasion = f"balance.low/{self.occasions}"
        return Notice(self.tenant_id, "balance.low", at, {**amounts, "currency": currency}, occasion)


@dataclass(frozen=True, slots=True)
class Spending:
    """What is spent of a budget in its period."""

    kept: KeptBudget
    start: datetime
    until: datetime
    spent: Femto

    def notice(self, currency: str, at: datetime) -> Notice | None:
        """The highest level reached, once a period; None below the lowest, and of budgets of nothing."""
        budget, owner = self.kept.budget, self.kept.owner
        level = next((level for level in LEVELS if self.spent * 100 >= budget.amount * level), None)
        if level is None or not self.spent or not budget.amount:
            return None
        facts = {
            "budget_id": budget.id,
            "level": owner.level,
            "owner_id": owner.id,
            "percent": level,
            "spent": decimal_of(self.spent),
            "amount": decimal_of(budget.amount),
            "currency": currency,
            "period": budget.period,
            "since": instant_text(self.start),
            "until": instant_text(self.until),
            "hard": budget.hard,
        }
        occasion = f"budget.reached/{budget.id}/{instant_text(self.start)}/{level}"
        return Notice(owner.tenant_id, "budget.reached", at, facts, occasion)


@dataclass(frozen=True, slots=True)
class ExpiringKey:
    """A key in use that ends soon."""

    id: str
    tenant_id: str
    name: str
    created_at: datetime
    expires_at: datetime

    def notice(self, at: datetime) -> Notice | None:
        """Once a day and once a week before its end; None where its whole life is shorter than that."""
        for ahead in AHEAD:
            if self.expires_at - ahead <= at:
                if self.created_at > self.expires_at - ahead:
                    return None
                end = instant_text(self.expires_at)
                facts = {"key_id": self.id, "name": self.name, "expires_at": end, "days": ahead.days}
                occasion = f"key.expiring/{self.id}/{end}/{ahead.days}"
                return Notice(self.tenant_id, "key.expiring", at, facts, occasion)
        return None


def price_notices(
    book: PriceBook, tenant_id: str, currency: str, since: datetime, at: datetime
) -> Iterator[Notice]:
    """Each change of what a tenant will pay that comes after ``since``: of rows, their ends and placements.

    Args:
        book: the whole one.
        tenant_id: whose.
        currency: it is billed in.
        since: a little before ``at``, so that what came in force between two looks is told as well.
        at: now.
    """
    own = book.of(tenant_id)
    for model in sorted({row.model for row in book.rows if row.currency == currency}):
        for instant in own.changes(model, currency, since, at + _LAST):
            before, after = (_in_force(own, model, currency, each) for each in (instant - _TICK, instant))
            if before is None or after is None or _rated(before) == _rated(after):
                continue
            begins = instant_text(instant)
            facts: dict[str, Any] = {
                "model": model,
                "currency": currency,
                "effective_from": begins,
                "per_tokens": 1_000_000,
                "before": {"price_row_id": before.id, "rates": _rated(before)},
                "after": {"price_row_id": after.id, "rates": _rated(after)},
            }
            yield Notice(tenant_id, "price.changing", at, facts, f"price.changing/{after.id}@{begins}")


def upcoming(book: PriceBook, since: datetime) -> bool:
    """Whether any row or placement begins or ends after an instant, whoever's."""
    instants = [row.effective_from for row in book.rows]
    instants += [row.effective_until for row in book.rows if row.effective_until is not None]
    instants += [placement.effective_from for placement in book.placements]
    return any(instant > since for instant in instants)


def _in_force(book: PriceBook, model: str, currency: str, at: datetime) -> PriceRow | None:
    try:
        return book.row(model, currency, at)
    except PriceMissing:
        return None


def _rated(row: PriceRow) -> dict[str, str]:
    """What a row says of what is paid; when it ends is no price."""
    return {what: text for what, text in said(row).items() if what != "until"}
