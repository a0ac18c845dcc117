"""Recorded usage, rated by another book."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from billing.errors import PriceMissing, TierMissing, UsageInvalid
from billing.money import Femto
from billing.pricing.book import PriceBook
from billing.pricing.rating import rate
from billing.usage import Tier, TokenUsage

NOTHING: Final = Femto(0)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request as the books have it. ``posted`` is what the ledger took for it."""

    tenant_id: str
    model: str
    currency: str
    tier: Tier
    admitted_at: datetime
    rated_at: datetime
    recorded_at: datetime
    usage: TokenUsage
    posted: Femto


@dataclass(slots=True)
class Total:
    """Requests of a tenant: what the ledger took for them, and what another book asks.

    Those that the other book does not price are ``unpriced``, and in neither sum.
    """

    requests: int = 0
    unpriced: int = 0
    posted: Femto = NOTHING
    rated: Femto = NOTHING

    @property
    def difference(self) -> Femto:
        """What the other book asks beyond."""
        return Femto(self.rated - self.posted)


@dataclass(frozen=True, slots=True)
class Replay:
    """Rates requests one by one, and sums them by tenant and currency."""

    published: PriceBook
    other: PriceBook
    totals: dict[tuple[str, str], Total] = field(default_factory=dict)

    def add(self, request: Recorded) -> None:
        """Rate one more."""
        total = self.totals.setdefault((request.tenant_id, request.currency), Total())
        total.requests += 1
        other = self.other.of(request.tenant_id)
        try:
            at = self._instant(request, other)
            charge = rate(other, request.model, request.currency, request.usage, at, request.tier)
        except (PriceMissing, TierMissing, UsageInvalid):
            total.unpriced += 1
        else:
            total.posted = Femto(total.posted + request.posted)
            total.rated = Femto(total.rated + charge.amount)

    def _instant(self, request: Recorded, other: PriceBook) -> datetime:
        """The instant that rates it there.

        Of a request that was rated at its admission nobody kept the completion. Where the other book asks for
        it, the instant at which it was recorded stands for it, which is moments later.
        """
        asked = request.model, request.currency, request.admitted_at
        if other.row(*asked).instant == "admitted":
            return request.admitted_at
        if self.published.of(request.tenant_id).row(*asked).instant == "completed":
            return request.rated_at
        return max(request.recorded_at, request.admitted_at)
