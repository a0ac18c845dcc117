"""Credit that asks to be topped up when it runs low. Nothing is paid here: a payment executes the request."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from billing.errors import AmountInvalid
from billing.ledger.balance import BalanceVersion
from billing.money import Femto, decimal_of

# After the first declined payment in a row, the second …: card networks fine who tries 15 times in 30 days.
RETRY_AFTER: Final = (
    *(timedelta(hours=1), timedelta(hours=8), timedelta(days=1)),
    *(timedelta(days=3), timedelta(days=7)),
)
KEY_PREFIX: Final = "auto-top-up-"


@dataclass(frozen=True, slots=True)
class AutoTopUp:
    """A tenant's rule: below ``threshold``, top up by ``amount``.

    ``armed`` until it has asked, and again once the balance has been at the threshold or above.

    Raises:
        AmountInvalid: an amount of nothing.
    """

    threshold: Femto
    amount: Femto
    enabled: bool = True
    armed: bool = True

    def __post_init__(self) -> None:
        if self.amount <= 0:
            raise AmountInvalid(decimal_of(self.amount))

    def top_up_due(self, balance: Femto) -> bool:
        """Whether this balance crosses the threshold."""
        return self.enabled and self.armed and balance < self.threshold


@dataclass(frozen=True, slots=True)
class TopUpRequest:
    """One crossing of the threshold, asked for once; ``number`` counts a tenant's, from 1."""

    tenant_id: str
    number: int
    amount: Femto
    requested_at: datetime
    crossed_at: BalanceVersion

    @property
    def idempotency_key(self) -> str:
        """The key of the top-up that executes it: paid once, credited once."""
        return f"{KEY_PREFIX}{self.number}"
