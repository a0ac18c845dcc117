"""Credit: granted or paid for, in lots that are drawn on in one order."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from billing.errors import AmountInvalid
from billing.ledger.entries import CREDIT_ACCOUNTS, Account, CreditAccount
from billing.money import Femto, decimal_of


@dataclass(frozen=True, slots=True)
class Grant:
    """Credit to give a tenant. With an ``idempotency_key`` it is given once, however often it is asked for.

    Raises:
        AmountInvalid: not more than zero.
    """

    amount: Femto
    kind: Literal["granted", "topped_up"]
    reason: str
    actor: str
    expires_at: datetime | None = None
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        if self.amount <= 0:
            raise AmountInvalid(decimal_of(self.amount))

    @property
    def account(self) -> CreditAccount:
        """Where it is credited."""
        return CREDIT_ACCOUNTS[self.kind]


@dataclass(frozen=True, slots=True)
class Lot:
    """What remains of one credit, its id the crediting transaction's."""

    id: UUID
    account: CreditAccount
    amount: Femto
    remaining: Femto
    created_at: datetime
    expires_at: datetime | None

    def __post_init__(self) -> None:
        assert 0 <= self.remaining <= self.amount, f"lot {self.id} holds {self.remaining} of {self.amount}"

    def less(self, part: Femto) -> "Lot":
        """The lot after a draw; every charge makes one, and `dataclasses.replace` is three times slower."""
        remaining = Femto(self.remaining - part)
        return Lot(self.id, self.account, self.amount, remaining, self.created_at, self.expires_at)

    def __lt__(self, other: "Lot") -> bool:
        """Order of use: granted before topped up, sooner expiry first, then older first."""
        return self._order() < other._order()

    def _order(self) -> tuple[bool, bool, datetime, datetime, UUID]:
        never = self.expires_at is None
        return (
            self.account is Account.TOPPED_UP,
            never,
            self.expires_at or self.created_at,
            self.created_at,
            self.id,
        )
