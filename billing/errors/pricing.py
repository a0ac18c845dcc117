"""What is wrong with usage or its price."""

from dataclasses import dataclass
from datetime import datetime

from billing.errors.base import BillingError, Faulty


class UsageInvalid(Faulty):
    """The engine reported impossible token counts."""

    what = "impossible token counts"


@dataclass(eq=False)
class PriceMissing(BillingError):
    """No price covers (model, currency, instant)."""

    model: str
    currency: str
    at: datetime

    def __str__(self) -> str:
        return f"no price for {self.model} in {self.currency} at {self.at.isoformat()}"


@dataclass(eq=False)
class TierMissing(BillingError):
    """The price in force does not offer this tier."""

    model: str
    currency: str
    tier: str

    def __str__(self) -> str:
        return f"{self.model} is not offered in {self.currency} at the tier {self.tier!r}"


@dataclass(eq=False)
class PriceInvalid(BillingError):
    """A price book says something that is no price.

    ``place`` says where in it; ``file`` and ``line`` where that is written, if it was read from one.
    """

    place: str
    reason: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        written = "" if self.file is None else f"{self.file}:{self.line}: "
        return f"{written}{self.place}: {self.reason}"


@dataclass(eq=False)
class PriceConflict(BillingError):
    """A published price row cannot be changed, nor be put in force before every gateway has seen it."""

    price_row_id: str
    reason: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        written = "" if self.file is None else f"{self.file}:{self.line}: "
        return f"{written}price {self.price_row_id}: {self.reason}"


@dataclass(eq=False)
class PlanMissing(BillingError):
    """No price plan has this name."""

    plan: str

    def __str__(self) -> str:
        return f"no price plan {self.plan!r}"


@dataclass(eq=False)
class PlanConflict(BillingError):
    """A plan's name is taken, or a tenant cannot be placed on it like that."""

    plan: str
    reason: str

    def __str__(self) -> str:
        return f"price plan {self.plan!r}: {self.reason}"
